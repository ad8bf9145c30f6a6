"""A stack holds its cluster file, so that the master and a colleague can have it, and the master may do its tasks."""

import tomllib
from collections.abc import Callable
from dataclasses import replace as with_
from pathlib import Path
from typing import Any

import boto3
import pytest
from designs import VARIANTS

from cfn import changes, cost, create, hostfile, in_stack, plan, stack, status, update
from cfn.aws import Aws
from cfn.stack import StackError
from cluster import written
from cluster.clusterfile import text
from cluster.clusterfile.model import ClusterFile, Ssh
from cluster.errors import ConfigError
from dlami.tasks import stack_actions
from lab.aws import FakeAws
from tests.walking import walked


def quiet(_: str) -> None:
    """Shows nothing."""


@walked("variant", VARIANTS)
def test_a_stack_holds_the_whole_file(variant: str) -> None:
    file = VARIANTS[variant].file
    assert file == text.parse(tomllib.loads(text.render(in_stack.values(file))))


def test_what_holds_on_one_machine_is_not_in_the_stack(file: ClusterFile) -> None:
    """A path of the laptop and its way in mean nothing elsewhere, and change no resource."""
    own = with_(file, ssh=Ssh(key="~/mine", gateway="203.0.113.9", port=2222))
    assert {"ssh.port": 2222} == {k: v for k, v in in_stack.values(own).items() if k not in in_stack.values(file)}


def test_a_price_that_is_given_is_the_masters_too_and_another_changes_no_node(
    fake: FakeAws, file: ClusterFile, account: Aws
) -> None:
    """The jobs' cost is asked there, where nobody has the cluster file; CloudFormation takes metadata with a resource."""
    own = with_(file, nodes=with_(file.nodes, usd_per_hour=9.0))
    create.create(account, plan.make(account, own), quiet)
    assert (9.0, 9.0) == tuple(
        h.usd_per_hour for h in cost.cluster_cost(account, in_stack.file_of(account, "demo")).hosts[:2]
    )
    dearer = with_(file, nodes=with_(file.nodes, usd_per_hour=10.0))
    proposed = update.prepare(account, dearer)
    assert {"AWS::AutoScaling::AutoScalingGroup"} == {c.kind for c in proposed.changes}
    before = stack.outputs(account, "demo")
    update.execute(account, proposed, dearer, quiet)
    assert 10.0 == in_stack.file_of(account, "demo").nodes.usd_per_hour
    assert before == stack.outputs(account, "demo") and () == status.read_status(account, dearer).differs


def test_the_set_up_script_travels_with_the_stack(
    fake: FakeAws, file: ClusterFile, tmp_path: Path, account: Aws
) -> None:
    """A colleague gets it beside the file; another content is new launch templates, and no more than that."""
    script, there = tmp_path / "prepare.sh", tmp_path / "there"
    script.write_text("#!/bin/sh\necho one\n")
    there.mkdir()
    own = with_(file, setup=str(script))
    create.create(account, plan.make(account, own), quiet)

    stack_actions.write_file(str(there / "cluster.toml"), from_stack="demo")

    assert with_(own, setup=str(there / "prepare.sh")) == stack_actions.load(str(there / "cluster.toml"))
    assert "#!/bin/sh\necho one\n" == (there / "prepare.sh").read_text()
    assert () == status.read_status(account, own).differs
    script.write_text("#!/bin/sh\necho two\n")
    proposed = update.prepare(account, own)
    assert changes.only_new_nodes(proposed), str(proposed)
    changes.drop(account, proposed)
    script.unlink()
    with pytest.raises(ConfigError, match="setup: there is no file"):
        plan.make(account, own)


def test_a_colleague_takes_the_file_from_the_stack(
    fake: FakeAws, file: ClusterFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, account: Aws
) -> None:
    """As it is after the last update; a file that is there is left alone; a stack without one says so."""
    create.create(account, plan.make(account, file), quiet)
    more = with_(file, nodes=with_(file.nodes, workers=4))
    update.execute(account, update.prepare(account, more), more, quiet)
    path = tmp_path / "cluster.toml"

    stack_actions.write_file(str(path), from_stack="demo")

    assert more == text.read(path)
    with pytest.raises(ConfigError, match="is there already"):
        stack_actions.write_file(str(path), from_stack="demo")
    with pytest.raises(StackError, match="there is no stack other"):
        stack_actions.write_file(str(tmp_path / "x"), from_stack="other")
    next(iter(fake.world.stacks.values())).text = "{}"
    with pytest.raises(StackError, match="holds no cluster file: copy the one"):
        stack_actions.write_file(str(tmp_path / "x"), from_stack="demo")
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(ConfigError, match="give --region"):
        stack_actions.write_file(str(tmp_path / "x"), from_stack="demo")


def test_the_masters_role_suffices_for_the_tasks_that_need_no_more(
    fake: FakeAws, file: ClusterFile, tmp_path: Path, account: Aws, scene: Callable[..., Any]
) -> None:
    """Status, hosts, the file and a replacement need nothing that the role of the nodes does not allow.

    They try to list the stack's resources, to find what was deleted outside it, and go on where that is refused.
    """
    create.create(account, plan.make(account, file), quiet)
    role = stack.resource_ids(account, stack.get(account, "demo"))["MasterRole"]
    policy = boto3.client("iam").get_role_policy(RoleName=role, PolicyName="node")["PolicyDocument"]
    allowed = {a for s in policy["Statement"] for a in ([s["Action"]] if isinstance(s["Action"], str) else s["Action"])}
    before, path = len(fake.world.log), tmp_path / "cluster.toml"
    listing = "ListStackResources"
    scene("faults", {"service": "cloudformation", "action": listing, "code": "AccessDenied", "status": 403, "times": 9})

    stack_actions.write_file(str(path), from_stack="demo")
    status.read_status(account, file)
    written.write(hostfile.targets(account, path, file), force=False)
    update.replace(account, file, "2", quiet)

    assert {f"{c['service']}:{c['operation']}" for c in fake.world.log[before:]} <= {
        *allowed,
        f"cloudformation:{listing}",
    }
