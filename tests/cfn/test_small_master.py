"""A master of another type than its workers: planned, bought, billed and written into the hostfile as one of 0 slots."""

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cfn import cost, create, hostfile, in_stack, plan, replace_instance, stack, status
from cfn.aws import Aws
from cluster.clusterfile import text
from cluster.clusterfile.checks import FieldError
from cluster.clusterfile.model import Access, ClusterFile, Guard, Master, Nodes
from cluster.guard.onhost.api import Api
from cluster.hosts import parse_hostfile
from cluster.inventory import ROOT
from lab.aws import FakeAws
from tests.cfn.reservations import reservation
from tests.conftest import PATIENCE_S

Scene = Callable[[str, dict[str, Any]], Any]
MASTER, NODE = "m5.large", "g5.12xlarge"


def small(**more: Any) -> ClusterFile:
    """1 small master + 2 workers, the master on demand, its workers on spot."""
    given = {
        "nodes": Nodes(instance_type=NODE, workers=2, capacity="spot"),
        "master": Master(instance_type=MASTER, capacity="on-demand"),
        "access": Access(ssh_from="203.0.113.7/32"),
        **more,
    }
    return ClusterFile(name="demo", **given)


@pytest.fixture
def priced(fake: FakeAws, scene: Scene) -> None:
    """0.1 USD for the master, 4 for a worker on spot, 10 on demand."""
    scene("prices", {MASTER: 0.1, NODE: 10.0})
    scene("spot_prices", {NODE: 4.0, MASTER: 0.03})


def test_it_is_made_listed_and_billed(priced: None, account: Aws, tmp_path: Any) -> None:
    """The first line of the hostfile has slots=0; its hours cost its own price; the guard counts by both."""
    file = small(guard=Guard(budget_usd=100))
    create.create(account, plan.make(account, file), lambda _: None)
    outputs = stack.outputs(account, "demo")
    (tmp_path / "cluster.toml").write_text(text.render({"name": "demo", "access.ssh_from": "203.0.113.7/32"}))
    written = parse_hostfile(hostfile.targets(account, tmp_path / "cluster.toml", file)[0].text, "hosts")

    assert [0, 4, 4] == [h.slots for h in written]
    assert [0, 4, 4] == [h["slots"] for h in replace_instance.hosts(account, "demo", outputs)["hosts"]]
    found = cost.cluster_cost(account, file)
    assert [(MASTER, "on-demand", 0.1), (NODE, "spot", 4.0), (NODE, "spot", 4.0)] == [
        (h.instance_type, h.market, h.usd_per_hour) for h in found.hosts
    ]
    assert status.read_status(account, file).is_healthy
    assert file == in_stack.file_of(account, "demo")
    seen = Api("us-east-1", "demo").groups()
    assert (3, 1, 4.0, 0.1) == (
        len(seen.instances),
        seen.masters,
        seen.terms.usd_per_hour,
        seen.terms.master_usd_per_hour,
    )


def test_it_is_in_no_reservation(fake: FakeAws, account: Aws, scene: Scene) -> None:
    """Four instances are reserved: four workers fit beside a master that is bought for itself."""
    kind = "p5.48xlarge"
    nodes = Nodes(
        instance_type=kind, workers=4, capacity="reservation", reservation=reservation(scene, ReservationType="default")
    )
    made = plan.make(account, small(nodes=nodes, master=Master(instance_type=MASTER)))

    assert ("on-demand", "reservation") == (made.design.file.market("master"), made.design.file.market("worker"))
    with pytest.raises(FieldError, match="use at most 3 workers"):
        plan.make(account, small(nodes=nodes, master=Master()))


STUBS = """
set -Eeuo pipefail
say() { echo "$*"; }
publish() { cp "$1" "$2"; }
wait_for() { [ -e "$1" ] || { echo "waits for $1"; exit 7; }; }
failed() { [ -z "$BUILDS" ] || rmdir "$LIFE/wheels.by" || true; exit 1; }
trap failed ERR
BUILDS=''
"""


def runtime(life: Path, role: str, other: str, name: str, fails: bool = False) -> str:
    """First boot's step of a node, the installer a stub; what that was told, or that the node waits."""
    script = (ROOT / "scripts/first-boot.sh").read_text()
    functions = "".join(
        re.findall(r"^(?:runtime|root_copy)\(\) \{.*?^\}\n|^as_login\(\) [^\n]*\n", script, re.S | re.M)
    )
    project = life.parent / name
    (project / ".venv/bin").mkdir(parents=True)
    (project / "scripts").mkdir()
    (project / "tasks.py").touch()
    (project / ".venv/.horovod").write_text(str(project / "tasks.py"))
    for path, body in {
        "scripts/install.sh": '[ "${1:-}" != packages ] || exit 0; echo "installs from ${DLAMI_CLUSTER_WHEELS:-the registry}"; touch "$VENV/.installed"; exit '
        + ("1" if fails else "0"),
        ".venv/bin/pip": "true",
        ".venv/bin/python": '[ "${2#import sys}" = "$2" ]',  # the runtime is not there; what it then imports is
    }.items():
        (project / path).write_text(f"#!/bin/bash\n{body}\n")
        (project / path).chmod(0o755)
    settings = {"PROJECT": str(project), "VENV": str(project / ".venv"), "LIFE": str(life), "STATE": str(life)}
    settings["LOCAL"] = str(life.parent / f"local-{name}")
    told = subprocess.run(
        ["bash", "-c", f"{STUBS}{functions}runtime"],
        env={"PATH": os.environ["PATH"], "ROLE": role, "OTHER_MASTER": other, "LOGIN": "root", **settings},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    return told.stdout.strip() or told.stderr


def test_the_first_worker_builds_the_workers_environment(tmp_path: Path) -> None:
    """A master without GPUs has one for itself alone; a worker whose build failed leaves it to the next."""
    life = tmp_path / "life"
    life.mkdir()

    assert "installs from the registry" == runtime(life, "master", "1", "m")
    assert not (life / "wheels").exists()
    assert "installs from the registry" == runtime(life, "worker", "1", "a", fails=True)
    assert "installs from the registry" == runtime(life, "worker", "1", "b")
    assert (life / "wheels/.installed").exists()
    assert f"installs from {life}/wheels" == runtime(life, "worker", "1", "c")


def test_a_master_of_the_nodes_type_builds_for_all(tmp_path: Path) -> None:
    """As ever; a worker waits for it."""
    life = tmp_path / "life"
    life.mkdir()

    assert f"waits for {life}/wheels/.installed" == runtime(life, "worker", "", "a")
    assert "installs from the registry" == runtime(life, "master", "", "m")
    assert f"installs from {life}/wheels" == runtime(life, "worker", "", "b")
