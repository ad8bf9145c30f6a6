"""What starts a rank of the operator's program: both worlds' variables, signals, ends. Real processes, no mpirun."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster.inventory import ROOT
from cluster.jobs import cleanup
from cluster.launch.onhost.rank import defaults, whole_lines, world
from cluster.ssh.tagged_processes import end_script
from tests.conftest import PATIENCE_S, wait_for

WRAPPER = str(ROOT / "cluster/launch/onhost/rank.py")


def told(rank: int = 9, per: str = "gpu", nodes: str = "10.0.1.10:8,10.0.1.11:8", size: int = 16) -> dict[str, str]:
    """What Open MPI and the job say to a rank."""
    return {
        "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(size), "OMPI_COMM_WORLD_LOCAL_RANK": str(rank % 8),
        "OMPI_COMM_WORLD_LOCAL_SIZE": "8" if per == "gpu" else "1", "DLAMI_NODES": nodes, "DLAMI_PER": per,
        "DLAMI_HOSTFILE": "/efs/jobs/x/nodes", "DLAMI_JOB": "x", "DLAMI_JOB_DIR": "/efs/jobs/x", "MASTER_ADDR": "10.0.1.10",
        "MASTER_PORT": "23456",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rank", "nodes", "node"),
    [(0, "a:8,b:8", 0), (7, "a:8,b:8", 0), (8, "a:8,b:8", 1), (2, "a:1,b:1,c:4", 2), (3, "fe80::1:3,b:2", 1)],
)
def test_a_rank_knows_its_host_s_place(rank: int, nodes: str, node: int) -> None:
    """Ranks fill the hosts in order, as mpirun maps them."""
    assert str(node) == world(told(rank, nodes=nodes))["NODE_RANK"]


def test_a_rank_has_the_names_of_both_worlds() -> None:
    """PyTorch's, dstack's and SkyPilot's; torchrun's own defaults only where it is started once per host."""
    said = world(told(9))

    assert ("9", "16", "1", "8", "1", "2") == tuple(
        said[n] for n in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "NNODES")
    )
    assert said["DSTACK_NODES_IPS"] == said["SKYPILOT_NODE_IPS"] == "10.0.1.10\n10.0.1.11"
    assert ("10.0.1.10", "16", "8") == tuple(
        said[n] for n in ("DSTACK_MASTER_NODE_IP", "DSTACK_GPUS_NUM", "SKYPILOT_NUM_GPUS_PER_NODE")
    )
    assert not [n for n in said if n.startswith("PET_")]


def test_a_rank_has_the_names_of_the_cloudformation_cluster() -> None:
    """All four, whether it was launched per slot or per node; the shared folder is where the job's is."""
    for per in ("gpu", "node"):
        said = world(told(1, per, size=2))
        assert ("2", "/efs/jobs/x/workers", "8", "/efs") == tuple(
            said[n]
            for n in (
                "DEEPLEARNING_WORKERS_COUNT",
                "DEEPLEARNING_WORKERS_PATH",
                "DEEPLEARNING_WORKER_GPU_COUNT",
                "EFS_MOUNT",
            )
        )


@pytest.mark.parametrize(
    ("folder", "own", "expected"), [("x/code", False, True), ("mine", False, False), ("x/code", True, False)]
)
def test_hosts_lies_beside_a_program_that_the_job_has_a_copy_of(
    folder: str, own: bool, expected: bool, tmp_path: Path
) -> None:
    """Not in the operator's own folder, nor over a file of that name."""
    place = tmp_path / folder
    place.mkdir(parents=True)
    hostfile = tmp_path / "nodes"
    hostfile.write_text("10.0.1.10 slots=8\n")
    if own:
        (place / "hosts").write_text("my own\n")
    rank_of("true", folder=place, DLAMI_HOSTFILE=str(hostfile)).communicate(timeout=PATIENCE_S)

    assert expected == ((place / "hosts").exists() and (place / "hosts").read_text() == hostfile.read_text())
    assert own == (place / "hosts").is_file() or expected


def test_what_somebody_set_stays() -> None:
    """The device for gloo and NCCL, threads; but NCCL cannot read networks, which the profile may have for mpirun."""
    own = {"GLOO_SOCKET_IFNAME": "bond0", "OMP_NUM_THREADS": "5", "NCCL_SOCKET_IFNAME": "ens6"}
    plain, given = defaults(told(), "ens5"), defaults({**told(), **own}, "ens5")
    networks = defaults({**told(), "NCCL_SOCKET_IFNAME": "10.0.1.0/24"}, "ens5")

    assert {"ens5"} == {plain[f"{who}_SOCKET_IFNAME"] for who in ("GLOO", "NCCL", "TP")}
    assert not own.keys() & given.keys()
    assert "ens5" == networks["NCCL_SOCKET_IFNAME"]
    assert "GLOO_SOCKET_IFNAME" not in defaults(told(), "")


def rank_of(*words: object, folder: Path, **options: Any) -> "subprocess.Popen[str]":
    """A rank on this machine."""
    environment = {**os.environ, **told(0, nodes="127.0.0.1:2", size=1), "DLAMI_PATH": str(Path(sys.executable).parent)}
    return subprocess.Popen(
        [sys.executable, "-IS", WRAPPER, str(folder), *map(str, words)],
        env={**environment, **options}, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_the_program_runs_in_its_folder_with_the_project_s_python(tmp_path: Path) -> None:
    """What the job lends to import comes after the program's own, and the loopback is this machine's device."""
    show = "import json, os, sys; print(json.dumps([os.getcwd(), sys.executable, dict(os.environ)]))"
    out, _ = rank_of("python", "-c", show, folder=tmp_path, PYTHONPATH="/mine").communicate(timeout=PATIENCE_S)
    folder, python, environment = json.loads(out)

    assert (str(tmp_path), str(Path(sys.executable))) == (folder, python)
    assert "/mine:/efs/jobs/x/lib" == environment["PYTHONPATH"]
    assert ("lo", "0", "1") == tuple(environment[n] for n in ("GLOO_SOCKET_IFNAME", "RANK", "WORLD_SIZE"))


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("sh", "-c", "exit 7"), 7, ""),
        (("sh", "-c", "kill -SEGV $$"), -signal.SIGSEGV, ""),
        (("no-such-program",), 127, "dlami: no-such-program cannot be started on "),
        (("./one.py",), 126, "give its interpreter, as in: python ./one.py"),
        (("./bare",), 126, "does not begin with a line like #!/bin/bash"),
    ],
)
def test_a_rank_ends_as_its_program_did(words: Any, code: int, said: str, tmp_path: Path) -> None:
    """By the same exit code or signal; what could not be started is a sentence."""
    (tmp_path / "one.py").write_text("print(1)\n")
    (tmp_path / "bare").write_text("\1\2\n")
    (tmp_path / "bare").chmod(0o755)
    one = rank_of(*words, folder=tmp_path)
    _, err = one.communicate(timeout=PATIENCE_S)

    assert code == one.returncode, err
    assert said in err
    assert "Traceback" not in err


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    """With its host."""
    one = rank_of("true", folder=tmp_path / "gone")
    _, err = one.communicate(timeout=PATIENCE_S)

    assert 126 == one.returncode
    assert f"dlami: {tmp_path}/gone on {os.uname().nodename}: No such file or directory" in err


SAVES = """\
import signal, time
asked = []
signal.signal(signal.SIGUSR1, lambda *_: asked.append(1))
print("steps", flush=True)
while not asked:
    time.sleep(0.01)
print("saved", flush=True)
"""


def test_a_shell_around_the_program_does_not_die_of_what_asks_it_to_save(tmp_path: Path) -> None:
    """SIGUSR1 reaches who listens to it; the shell, which does not, goes on with its next line."""
    (tmp_path / "saves.py").write_text(SAVES)
    one = rank_of("bash", "-c", "python saves.py; echo after $?; exit 3", folder=tmp_path)
    assert one.stdout
    assert "steps\n" == one.stdout.readline()
    one.send_signal(signal.SIGUSR1)
    out, _ = one.communicate(timeout=PATIENCE_S)

    assert ("saved\nafter 0\n", 3) == (out, one.returncode)


def test_what_does_not_listen_is_told_to_end(tmp_path: Path) -> None:
    """A stop needs not wait for what would never save; all of a tree goes."""
    one = rank_of("bash", "-c", "sleep 543 & echo on; wait", folder=tmp_path)
    assert one.stdout
    assert "on\n" == one.stdout.readline()
    one.send_signal(signal.SIGUSR1)
    one.communicate(timeout=PATIENCE_S)  # the sleep held the pipe open

    assert -signal.SIGTERM == one.returncode


def test_what_a_program_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    """Or it would hold the GPU, and mpirun would wait for ever for the end of its output."""
    one = rank_of("bash", "-c", "sleep 543 & echo $!", folder=tmp_path)
    out, _ = one.communicate(timeout=PATIENCE_S)
    left = Path("/proc") / out.strip() / "stat"

    assert 0 == one.returncode
    wait_for(lambda: not left.exists() or ") Z " in left.read_text(), 30, "it is gone")


@pytest.mark.parametrize(
    ("held", "whole"),
    [
        (b"a li", b""),
        (b"a line\nand", b"a line\n"),
        (b"50%\r60%\r", b"50%\r60%\r"),
        (b"x" * 70_000, b"x" * 70_000),
        (b"", b""),
    ],
)
def test_output_goes_on_in_lines(held: bytes, whole: bytes) -> None:
    """mpirun tags each piece that it reads, so lines in pieces would mix with those of other ranks."""
    assert whole == held[: whole_lines(held)]


def test_a_prompt_is_not_held_back(tmp_path: Path) -> None:
    """Nor what was written last without a line's end."""
    waits = "printf 'prompt> '; until [ -e go ]; do sleep 0.05; done; printf ok; kill -9 $$"
    one = rank_of("sh", "-c", waits, folder=tmp_path)
    assert one.stdout
    assert "prompt> " == one.stdout.read(8)
    (tmp_path / "go").touch()
    out, _ = one.communicate(timeout=PATIENCE_S)

    assert "ok" == out


def test_a_killed_wrapper_takes_its_program_along(tmp_path: Path) -> None:
    """mpirun's KILL reaches this process alone."""
    one = rank_of("sh", "-c", "echo $$; exec sleep 543", folder=tmp_path)
    assert one.stdout
    program = Path("/proc") / one.stdout.readline().strip()
    one.kill()
    one.communicate(timeout=PATIENCE_S)

    wait_for(lambda: not program.exists() or ") Z " in (program / "stat").read_text(), 30, "it is gone")


DAEMON = """
import os, sys, time
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
os.execve("/bin/sh", ["sh", "-c", "echo $$ >pid; exec sleep 4321"], {})
"""


def test_a_daemon_that_knows_nothing_of_the_job_ends_with_its_rank(tmp_path: Path) -> None:
    """Of a session of its own, without a variable of ours and without a parent; the rank ends as its program did."""
    (tmp_path / "daemon.py").write_text(DAEMON)
    script = f"{sys.executable} daemon.py; until [ -s pid ]; do sleep 0.05; done; exit 3"
    rank = rank_of("sh", "-c", script, folder=tmp_path)
    rank.communicate(timeout=PATIENCE_S)

    assert 3 == rank.returncode
    pid = int((tmp_path / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists()


KILLED = {
    "the keeper, as by mpirun": "kill -9 $keeper",
    "the wrapper": "kill -9 $wrapper",
    "the wrapper, and its program too": "kill -9 $wrapper $$",
}


@pytest.mark.parametrize("kills", KILLED)
def test_a_daemon_ends_with_its_rank_though_the_rank_is_killed(kills: str, tmp_path: Path) -> None:
    """It carries no tag by which a sweep could find it; what is left of the two processes around the program does."""
    (tmp_path / "daemon.py").write_text(DAEMON)
    script = (
        f"{sys.executable} daemon.py; until [ -s pid ]; do sleep 0.05; done; wrapper=$PPID; "
        f"keeper=$(ps -o ppid= -p $wrapper); {KILLED[kills]}; sleep 543"
    )
    rank = rank_of("sh", "-c", script, folder=tmp_path)
    rank.communicate(timeout=PATIENCE_S)
    daemon = Path(f"/proc/{int((tmp_path / 'pid').read_text())}")

    assert -signal.SIGKILL == rank.returncode
    wait_for(lambda: not daemon.exists() or ") Z " in (daemon / "stat").read_text(), 30, "it is gone")


def test_a_sweep_leaves_no_daemon_of_a_program_that_does_not_end(tmp_path: Path) -> None:
    """Its KILL comes to the rank's wrapper last, which knows what the program has started."""
    job = f"swept-{os.getpid()}"
    (tmp_path / "daemon.py").write_text(DAEMON)
    script = f"trap '' TERM; {sys.executable} daemon.py; until [ -s pid ]; do sleep 0.05; done; echo on; sleep 543; sleep 543"
    rank = rank_of("sh", "-c", script, folder=tmp_path, DLAMI_JOB=job)
    assert rank.stdout
    assert "on\n" == rank.stdout.readline()
    assert "" == subprocess.check_output(["sh", "-c", end_script("DLAMI_JOB", job, 0, last=cleanup.WRAPPER)], text=True)
    rank.communicate(timeout=PATIENCE_S)

    daemon = Path(f"/proc/{int((tmp_path / 'pid').read_text())}")
    assert not daemon.exists() or ") Z " in (daemon / "stat").read_text()


def test_daemons_that_end_before_their_program_stay_no_zombies(tmp_path: Path) -> None:
    """And their end is not taken for the program's."""
    script = (
        "for n in 1 2 3; do setsid sh -c '(sleep 0.1; exit 1) & exit 0'; done; sleep 1; "
        "ps -o stat= --ppid $PPID >children; exit 4"
    )
    rank = rank_of("sh", "-c", script, folder=tmp_path)
    rank.communicate(timeout=PATIENCE_S)

    assert 4 == rank.returncode
    assert "Z" not in (tmp_path / "children").read_text()
