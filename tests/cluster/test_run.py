"""One command on many real hosts: every host's answer, whatever happens to the others."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster.inventory import ROOT, Cluster, SshSettings
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from cluster.ssh.result import FanOutError
from lab import lab as labs
from lab.record import Lab
from tests.conftest import PATIENCE_S, Inv, wait_for


@pytest.mark.promise("run")
def test_a_dead_host_does_not_hide_a_live_one(lab: Lab, cluster: Cluster) -> None:
    """Every host's answer is in the error, not only the first failure."""
    labs.crash(lab, lab.hosts[3])
    with Executor(cluster) as reach, pytest.raises(FanOutError) as error:
        reach.run(cluster.hosts, "hostname", limits=Limits(connect_s=30)).check()

    assert f"{lab.name}-0" == error.value.results[cluster.master].text.strip()
    assert "1 of 4 hosts failed: hostname  (3 ok)" in str(error.value)
    assert cluster.hosts[3].address in str(error.value)


def test_a_refusing_host_is_told_from_a_silent_one(lab: Lab, cluster: Cluster, reach: Executor) -> None:
    """sshd stopped, host up: it refuses at once."""
    victim = cluster.hosts[1]
    reach.run([victim], "setsid sh -c 'sleep 0.2; pkill -x sshd' >/dev/null 2>&1 </dev/null &").check()
    reach.close()
    wait_for(lambda: dict(labs.statuses(lab))[lab.hosts[1]] == "silent", 60, "sshd has ended")
    with Executor(cluster) as fresh:
        result = fresh.run([victim], "hostname")[victim]
    labs.crash(lab, lab.hosts[1])

    assert "it refuses connections: is sshd running there?" == result.error


def test_output_comes_back_to_the_byte(cluster: Cluster, reach: Executor) -> None:
    """Binary, large, on both streams."""
    result = reach.run([cluster.master], "head -c 3000000 /dev/zero; printf '\\377\\0x' >&2; exit 7")[cluster.master]

    assert (7, bytes(3_000_000), b"\xff\0x") == (result.exit_code, result.stdout, result.stderr)


@pytest.mark.parametrize(
    ("limits", "command", "expected"),
    [
        (Limits(total_s=5), "while :; do echo x; sleep 0.1; done", "did not end within 5 s"),
        (Limits(silence_s=5), "echo begun; sleep 1000", "no output for 5 s"),
    ],
)
def test_a_command_over_its_limit_is_ended_on_the_hosts_too(
    cluster: Cluster, reach: Executor, limits: Any, command: Any, expected: Any
) -> None:
    """What it said until then is kept, and nothing of it runs on."""
    results = reach.run(cluster.hosts, f": marker-{os.getpid()}; {command}", limits=limits)

    assert {expected} == {r.error for r in results.values()}
    assert all(r.stdout for r in results.values())
    left = reach.run(cluster.hosts, f"ps -eo args | grep '[m]arker-{os.getpid()}' || true").check()
    assert {""} == {r.text for r in left.values()}


def test_an_unknown_host_key_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    """Not added in silence: the host may be another one."""
    (tmp_path / "known_hosts").touch()
    stranger = Cluster(
        name="x",
        hosts=cluster.hosts,
        folder=tmp_path,
        shared="/shared",
        project=str(ROOT),
        access=SshSettings(user="root", key=cluster.access.key, known_hosts=tmp_path / "known_hosts"),
    )
    with Executor(stranger) as reach:
        result = reach.run([cluster.master], "hostname")[cluster.master]

    assert result.exit_code is None
    assert "its SSH host key is not known here" in result.problem


def test_a_changed_host_key_is_refused(lab: Lab, cluster: Cluster, tmp_path: Path) -> None:
    """Another host under a known address."""
    keys = cluster.access.known_hosts.read_text().splitlines()
    swapped = keys[0].split()[0] + " " + " ".join(keys[1].split()[1:]) + "\n"
    (tmp_path / "known_hosts").write_text(swapped)
    fooled = Cluster(
        name="x",
        hosts=cluster.hosts,
        folder=tmp_path,
        shared="/shared",
        project=str(ROOT),
        access=SshSettings(user="root", key=cluster.access.key, known_hosts=tmp_path / "known_hosts"),
    )
    with Executor(fooled) as reach:
        result = reach.run([cluster.master], "hostname")[cluster.master]

    assert "its SSH host key is not the one we know" in result.problem


def test_a_wrong_key_is_told_apart(cluster: Cluster, tmp_path: Path) -> None:
    """The host is well, our key is not its."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True)
    stranger = Cluster(
        name="x",
        hosts=cluster.hosts,
        folder=tmp_path,
        shared="/shared",
        project=str(ROOT),
        access=SshSettings(user="root", key=tmp_path / "key", known_hosts=cluster.access.known_hosts),
    )
    with Executor(stranger) as reach:
        result = reach.run([cluster.master], "hostname")[cluster.master]

    assert "it refused our SSH key" in result.problem


@pytest.mark.promise("run")
def test_inv_run_folds_equal_answers(inv: Inv, cluster: Cluster) -> None:
    """The majority first, each output once, failures at the end, exit code 1."""
    done = inv("run", "--", f"[ $(hostname) = {cluster.name}-2 ] && echo odd && exit 4; echo same")

    prefix = cluster.master.address.rsplit(".", 1)[0]
    assert f"{prefix}.[1-2,4] (3)\n  same\n{prefix}.3 (1) exited 4\n  odd\n" == done.stdout
    assert "1 of 4 hosts failed" in done.stderr
    assert 1 == done.returncode
    again = inv("run", "--hosts", "@failed", "--", "hostname")
    assert f"{prefix}.3 (1)\n  {cluster.name}-2\n" == again.stdout


@pytest.mark.promise("run")
def test_ctrl_c_ends_the_remote_commands(lab: Lab, cluster: Cluster, reach: Executor) -> None:
    """On every host, and the operator is told."""
    running = subprocess.Popen(
        [sys.executable, "-m", "invoke", "run", "--", f": interrupt-{os.getpid()}; sleep 1000"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "CLUSTER": f"lab:{lab.name}"},
    )
    count = f"ps -eo args | grep -c '[i]nterrupt-{os.getpid()}' || true"
    wait_for(
        lambda: all(int(r.text) > 0 for r in reach.run(cluster.hosts, count).check().values()),
        120,
        "it runs everywhere",
    )
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=PATIENCE_S)

    assert "interrupted; its processes were ended on 4 of 4 hosts" in said
    assert 130 == running.returncode
    assert {"0\n"} == {r.text for r in reach.run(cluster.hosts, count).check().values()}
