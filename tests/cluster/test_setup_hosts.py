"""`inv setup` on lab hosts: the operator's script, its failures and its end, and settings."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.hostset import fold
from cluster.inventory import ROOT, Cluster
from cluster.ssh.fanout import Executor
from lab.record import Lab
from tests.conftest import PATIENCE_S, wait_for
from tests.processes import begun

SetUp = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def folder(cluster: Cluster, tmp_path: Path) -> Path:
    """A folder that describes the lab's hosts, with a script for them."""
    for name in ("hosts", "cluster.toml"):
        (tmp_path / name).write_text((cluster.folder / name).read_text())
    toml = tmp_path / "cluster.toml"
    toml.write_text('setup = "prepare.sh"\n' + toml.read_text())
    return tmp_path


def words(*more: str) -> list[str]:
    """The command line."""
    return [sys.executable, "-m", "invoke", "setup", *more]


def environment(folder: Path) -> dict[str, str]:
    """The folder's cluster is meant."""
    return {**os.environ, "CLUSTER": str(folder)}


@pytest.fixture
def set_up(folder: Path, reach: Executor, cluster: Cluster) -> Any:
    """`inv setup` in that folder; no stamp is left on any host afterwards."""

    def run(*more: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            words(*more), cwd=ROOT, env=environment(folder), capture_output=True, text=True, timeout=PATIENCE_S
        )

    clean = "rm -rf /var/lib/dlami-cluster/setup /var/log/dlami-setup.log /root/ran /root/well"
    reach.run(cluster.hosts, clean).check()
    yield run
    reach.run(cluster.hosts, clean).check()


def test_a_failure_is_named_by_host_and_only_that_host_runs_it_again(
    set_up: SetUp, folder: Path, reach: Executor, cluster: Cluster
) -> None:
    """With its last lines; --dry-run says who would, and what a node is told is true."""
    script = 'echo "$DLAMI_ROLE $DLAMI_SHARED $DLAMI_CLUSTER" >>/root/ran\n[ -e /root/well ] || { echo "no disk" >&2; exit 4; }\n'
    (folder / "prepare.sh").write_text(script)
    well, ill = [h for h in cluster.hosts if h.rank != 2], cluster.hosts[2]
    reach.run(well, "touch /root/well").check()

    first = set_up()
    plan = [json.loads(line) for line in set_up("--dry-run", "--json").stdout.splitlines()]
    reach.run([ill], "touch /root/well").check()
    again = set_up()

    assert (1, 0) == (first.returncode, again.returncode), first.stdout + first.stderr + again.stdout + again.stderr
    assert f"{ill}  prepare.sh: FAILED, it exited 4\n    | no disk\n" in first.stdout
    foreseen = [one for one in plan if one["what"] == "prepare.sh"]
    assert {0.0} == {one["seconds"] for one in foreseen}, "nothing ran"
    states = {one["host"]: one["state"] for one in foreseen}
    assert {**{h.address: "before" for h in well}, ill.address: "would run"} == states
    assert f"{ill}  prepare.sh: done\n" in again.stdout
    ran = reach.run(cluster.hosts, "cat /root/ran").check()
    told = {h: [f"{'master' if h.rank == 0 else 'worker'} /shared {cluster.name}"] for h in cluster.hosts}
    assert {**told, ill: told[ill] * 2} == {h: r.text.splitlines() for h, r in ran.items()}


INSTALLER = """#!/bin/sh
[ "$(hostname)" != ILL ] || { echo "no room on this host" >&2; exit 1; }
mkdir -p /opt/ours/.venv/bin && printf '#!/bin/sh\\nexit 0\\n' >/opt/ours/.venv/bin/python && chmod 755 /opt/ours/.venv/bin/python
"""


def test_the_environment_is_installed_where_it_is_missing(
    set_up: SetUp, folder: Path, reach: Executor, cluster: Cluster, lab: Lab
) -> None:
    """By the project's own installer, on all hosts at once; a host without the project, or that fails, is named."""
    toml = (folder / "cluster.toml").read_text().replace(f'project = "{ROOT}"', 'project = "/opt/ours"')
    (folder / "cluster.toml").write_text(toml.replace('setup = "prepare.sh"', ""))
    installer = INSTALLER.replace("ILL", lab.hosts[2].name).encode()
    put = "mkdir -p /opt/ours/scripts; cat >/opt/ours/scripts/install.sh; chmod 755 /opt/ours/scripts/install.sh"
    reach.run(cluster.hosts[:3], put, stdin=installer).check()
    try:
        first, again = set_up(), set_up("--json")
    finally:
        reach.run(cluster.hosts, "rm -rf /opt/ours").check()

    a, b, ill, without = cluster.hosts
    assert 1 == first.returncode
    assert f"{fold([a.address, b.address])}  environment: done\n" in first.stdout, first.stdout + first.stderr
    assert f"{ill}  environment: FAILED, exited 1   | no room on this host\n" in first.stdout
    assert f"{without}  environment: FAILED, /opt/ours is not there: inv sync brings it\n" in first.stdout
    states = [json.loads(line)["state"] for line in again.stdout.splitlines()]
    assert ["there", "there", "failed", "failed"] == states


def test_ctrl_c_leaves_nothing_of_it_on_any_host(
    set_up: SetUp, folder: Path, reach: Executor, cluster: Cluster
) -> None:
    """Neither a process nor a stamp."""
    (folder / "prepare.sh").write_text("#!/bin/sh\nsleep 87654 &\necho begun >/root/ran; wait\n")
    with begun(
        words(), cwd=ROOT, env=environment(folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        wait_for(lambda: not reach.run(cluster.hosts, "test -e /root/ran").failed, 120, "it has begun everywhere")
        running.send_signal(signal.SIGINT)
        said, _ = running.communicate(timeout=PATIENCE_S)

    assert 130 == running.returncode, said
    left = reach.run(cluster.hosts, "pgrep -f '[s]leep 87654'; ls /var/lib/dlami-cluster/setup")
    assert {""} == {r.text for r in left.values()}


@pytest.mark.promise("setup")
def test_settings_are_shown_then_changed_and_what_cannot_be_is_named(
    set_up: SetUp, reach: Executor, cluster: Cluster
) -> None:
    """One host's frames are no larger than the others' again; a lab's kernel is not its own, and it is said."""
    odd = cluster.hosts[1]
    reach.run([odd], "ip link set eth0 mtu 1600").check()
    try:
        shown = set_up("--settings", "--dry-run")
        line = f"{odd}  MTU of eth0: 1600 -> 1500"
        assert f"{line}  (ip link set eth0 mtu 1500)\n" in shown.stdout, shown.stderr
        assert "1600" in reach.run([odd], "cat /sys/class/net/eth0/mtu").check()[odd].text
        changed = set_up("--settings", "--hosts", "1")
        assert f"{line}\n" in changed.stdout
        assert "1500" in reach.run([odd], "cat /sys/class/net/eth0/mtu").check()[odd].text
        if "net.core.somaxconn" in changed.stdout:  # where this machine's is lower
            assert 1 == changed.returncode
            assert "FAILED, sysctl: " in changed.stdout
    finally:
        reach.run([odd], "ip link set eth0 mtu 1500").check()
