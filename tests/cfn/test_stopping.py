"""A cluster's nodes to zero and back, by the tasks and against the fake."""

import json
from pathlib import Path

import boto3
import pytest

from cfn import create, guard_deadline, hosts, plan, stack, status, stop
from cfn.aws import Aws
from cluster.clusterfile import text
from cluster.clusterfile.model import ClusterFile
from cluster.errors import NothingToDo
from dlami.fake_aws import cluster_values
from lab.aws import FakeAws
from lab.record import Lab
from tests.cfn.command_line import inv
from tests.conftest import wait_for


def quiet(_: str) -> None:
    """Shows nothing."""


@pytest.fixture
def made(fake: FakeAws, file: ClusterFile, account: Aws) -> list[hosts.GroupMember]:
    """The hosts of a cluster that runs."""
    return create.create(account, plan.make(account, file), quiet)


def test_a_stopped_cluster_has_no_node_and_comes_back_in_its_order(
    made: list[hosts.GroupMember], file: ClusterFile, account: Aws
) -> None:
    """Its file system, the master's addresses and the ranks are as before; nothing starts a node meanwhile."""
    before = stack.outputs(account, "demo")
    stop.stop(account, file, quiet)

    assert [] == hosts.read(account, before)
    assert guard_deadline.is_at_zero(account, file)
    told: list[str] = []
    after = stop.start(account, file, told.append)

    assert before == stack.outputs(account, "demo")
    assert [(h.rank, h.role) for h in made] == [(h.rank, h.role) for h in after]
    assert (made[0].address, set()) == (
        after[0].address,
        {h.instance_id for h in made} & {h.instance_id for h in after},
    )
    assert "demo: starting 4 instances" in told
    assert status.read_status(account, file).is_healthy
    with pytest.raises(NothingToDo, match="not stopped"):
        stop.start(account, file, quiet)


SAVES = (
    """trap 'touch "$DLAMI_JOB_DIR/saved"; exit 0' USR1; touch "$DLAMI_JOB_DIR/begun"; while :; do sleep 0.1; done"""
)


def test_jobs_are_saved_before_their_nodes_end(
    fake: FakeAws, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the tasks: a job that runs on what the file calls the master is told to save, and can be resumed."""
    values = {**cluster_values(lab, 1), "name": "demo", "ssh.known_hosts": str(lab.folder / "known_hosts")}
    text.write(tmp_path / "cluster.toml", text.render(values))
    assert 0 == inv(tmp_path, "stack.create", "--yes").returncode
    refused = inv(tmp_path, "stack.stop", "--yes")
    assert (2, True) == (refused.returncode, "add --unsaved" in refused.stderr), refused.stderr

    (tmp_path / "hosts").write_text((lab.folder / "hosts").read_text())
    words = ("--detach", "--unchecked", "--hosts", "0", "--per", "once", "--no-code", "--", "bash", "-c", SAVES)
    monkeypatch.setenv("CLUSTER", str(tmp_path))
    begun = inv(Path("/usr"), "train.run", *words)  # a folder that the lab's host has, too
    assert 0 == begun.returncode, begun.stderr
    wait_for(lambda: any(lab.shared.glob("jobs/*/begun")), 150, "the job runs")
    job = next(lab.shared.glob("jobs/*/begun")).parent
    dry = json.loads(inv(tmp_path, "stack.stop", "--dry-run", "--json").stdout)
    assert ([job.name], 2, False) == (dry["saves"], len(dry["ends"]), (job / "saved").exists())

    stopped = inv(tmp_path, "stack.stop", "--yes")

    assert 0 == stopped.returncode, stopped.stderr
    assert (job / "saved").exists()
    assert "stopped" == json.loads((job / "state.json").read_text())["state"]
    assert f"then inv jobs.resume {job.name}" in stopped.stdout and "USD per day in all" in stopped.stdout
    described = boto3.client("ec2").describe_instances()["Reservations"]
    assert {"terminated"} == {i["State"]["Name"] for r in described for i in r["Instances"]}
    again = inv(tmp_path, "stack.stop", "--yes")
    assert (0, True) == (again.returncode, "is stopped already" in again.stderr)

    started = inv(tmp_path, "stack.start", "--yes")
    assert (2, True) == (started.returncode, "demo has 2 hosts again" in started.stdout), started.stderr
    assert "would be lost" in started.stderr  # the hosts of this test were not written by hosts.write
