"""The launcher on real hosts: workers reached by sshd on 2222 and the job's own keys, as mpi-operator lays them out."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.inventory import ROOT
from cluster.jobs.claim import NAME_VARIABLE
from cluster.jobs.record import JobPaths, read_job
from cluster.jobs.records import read_attempts
from eks.image import SSH_FOLDER, SSH_PORT
from eks.job_spec import ORDER_VARIABLE, Order, new_id
from lab import nodes
from lab.record import SHARED, Lab, LabHost
from tests.conftest import PATIENCE_S, wait_for
from tests.eks.orders import flat_order

# Counts to STEPS in a file that is its checkpoint, and leaves when it is told to.
PROGRAM = """
import os, signal, sys, time
step = os.environ["DLAMI_JOB_DIR"] + "/checkpoints/step"
told = []
signal.signal(signal.SIGUSR1, lambda *_: told.append(1))
at = int(open(step).read() or 0) if os.path.exists(step) else 0
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "on", os.uname().nodename, "from", at, flush=True)
while at < int(os.environ["STEPS"]) and not told:
    time.sleep(0.1)
    at += 1
    if os.environ["RANK"] == "0":
        with open(step + ".tmp", "w") as file:
            file.write(str(at))
        os.replace(step + ".tmp", step)
"""


class Pods:
    """Lab hosts as the pods of an MPIJob: the first the launcher's, which is not among the hosts, the others workers."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self._lab, self._folder = lab, folder
        self.launcher, self.workers = lab.hosts[0], lab.hosts[1:3]
        self._servers: list[subprocess.Popen[bytes]] = []
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "521", "-N", "", "-C", "", "-f", str(folder / "id_rsa")],
            check=True,
            timeout=PATIENCE_S,
        )
        for host in (self.launcher, *self.workers):
            self.give_keys(host, folder)
        hostfile = "".join(f"{w.name} slots=2\n" for w in self.workers)
        self.inside(self.launcher, "mkdir -p /etc/mpi && cat >/etc/mpi/hostfile", hostfile.encode())
        for worker in self.workers:
            self.serve(worker)

    def inside(self, host: LabHost, script: str, stdin: bytes = b"") -> str:
        words = [*self._enter(host), "sh", "-ec", script]
        return subprocess.run(words, input=stdin, check=True, timeout=PATIENCE_S, capture_output=True).stdout.decode()

    def give_keys(self, host: LabHost, keys: Path) -> None:
        """A key pair as the job's Secret is mounted."""
        for name, source in {"id_rsa": "id_rsa", "id_rsa.pub": "id_rsa.pub", "authorized_keys": "id_rsa.pub"}.items():
            place = f"{SSH_FOLDER}/{name}"
            self.inside(host, f"mkdir -p {SSH_FOLDER}; cat >{place}; chmod 600 {place}", (keys / source).read_bytes())

    def serve(self, worker: LabHost) -> None:
        config = (
            f"Port {SSH_PORT}\\nHostKey {SSH_FOLDER}/id_rsa\\nAuthorizedKeysFile {SSH_FOLDER}/authorized_keys\\n"
            "PidFile /run/pod-sshd.pid\\nStrictModes no\\nUsePAM no\\nMaxStartups 100:30:200\\nMaxSessions 100\\n"
        )
        self.inside(worker, f"printf '{config}' >/etc/pod_sshd_config; /usr/sbin/sshd -f /etc/pod_sshd_config")

    def stop_serving(self, worker: LabHost) -> None:
        self.inside(worker, "kill $(cat /run/pod-sshd.pid) || true")

    def remove(self) -> None:
        """End what pods would take with them: servers, and connections that stay open for a while."""
        for worker in self.workers:
            self.stop_serving(worker)
            self.inside(worker, "rm -f /etc/pod_sshd_config")
        self.inside(self.launcher, "rm -f /etc/mpi/hostfile; pkill -f '[C]ontrolPath=/tmp/pod-' || true")

    def launch(self, order: Order) -> "subprocess.Popen[str]":
        """The launcher's container, started, with a folder of its own for what is temporary."""
        told = {
            "PATH": os.environ["PATH"],
            "HOME": "/root",
            "XDG_RUNTIME_DIR": self.inside(self.launcher, "mktemp -d /tmp/pod-XXXX").strip(),
            ORDER_VARIABLE: order.to_json(),
            NAME_VARIABLE: os.environ[NAME_VARIABLE],
        }
        container = [sys.executable, "-m", "eks.launcher"]
        words = [*self._enter(self.launcher), "sh", "-c", 'cd "$0" && exec "$@"', str(ROOT), *container]
        return subprocess.Popen(words, env=told, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def tell_to_leave(self) -> None:
        """SIGTERM, as Kubernetes tells a container."""
        self.inside(self.launcher, "pkill -TERM -f '[e]ks.launcher'")

    def kill_all_of(self, job: str) -> None:
        """The launcher's container is gone, with all that ran in it."""
        script = (
            f"for p in $(grep -lzx 'DLAMI_JOB={job}' /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3) "
            "$(pgrep -f '[e]ks.launcher|[c]luster.jobs.supervisor.supervise'); do kill -KILL $p || true; done"
        )
        self.inside(self.launcher, script)

    def shared(self, path: str) -> Path:
        """A path of the shared folder as this machine has it."""
        return self._lab.shared / Path(path).relative_to(SHARED)

    def _enter(self, host: LabHost) -> list[str]:
        pid = nodes.running(self._lab.name)[host.name]
        return ["nsenter", "--target", str(pid), "--all"]


@pytest.fixture
def pods(lab: Lab, tmp_path: Path) -> Iterator[Pods]:
    made = Pods(lab, tmp_path)
    yield made
    made.remove()


def order(**more: Any) -> Order:
    given: dict[str, Any] = {
        "job": new_id("count"),
        "submission": "first",
        "name": "count",
        "words": (sys.executable, "-c", PROGRAM),
        "workdir": "/tmp",
        "environment": {"STEPS": "60"},
        "shared": SHARED,
        "unchecked": True,
        "attempts_per_hour": 0,
    }
    return flat_order(**{**given, **more})


def ended(process: "subprocess.Popen[str]") -> tuple[int, str]:
    said, _ = process.communicate(timeout=PATIENCE_S)
    return process.returncode, said


def test_a_launcher_sees_its_job_through_whatever_becomes_of_launchers(pods: Pods) -> None:
    """One is told to leave, the next is killed, the third brings the job to its end; a fourth only says so."""
    asked = order()
    paths = JobPaths(pods.shared(f"{SHARED}/jobs/{asked.job}"))
    step = paths.checkpoints / "step"

    def is_past(number: int) -> bool:
        return step.exists() and int(step.read_text() or 0) > number

    first = pods.launch(asked)
    wait_for(lambda: first.poll() is not None or is_past(5), 120, "the first launcher's ranks count")
    assert first.poll() is None, ended(first)
    pods.tell_to_leave()
    code, said = ended(first)
    assert (128 + signal.SIGTERM) == code, said
    assert "told to end: by 'inv eks.jobs.stop', or because its node goes" in said
    assert f"rank 0 of 4 on {pods.workers[0].name} from 0\n" in said, said
    assert f"rank 3 of 4 on {pods.workers[1].name} from " in said, said  # rank 0 may have counted before it looks
    assert f"on {pods.launcher.name}" not in said
    reached = int(step.read_text())

    second = pods.launch(asked)
    wait_for(lambda: second.poll() is not None or is_past(reached + 5), 120, "the second launcher's ranks count")
    pods.kill_all_of(asked.job)
    code, said = ended(second)
    assert code != 0
    assert f"from {reached}" in said, said
    reached = int(step.read_text())

    code, said = ended(pods.launch(asked))
    assert 0 == code, said
    assert "is taken up" in said and f"{asked.job}: succeeded" in said, said
    assert [1, 2, 3] == [a.number for a in read_attempts(paths)]
    job = read_job(paths)
    assert [w.name for w in pods.workers] == [h.address for h in job.hosts]
    assert 60 == int(step.read_text())

    assert (0, f"dlami: {asked.job}: succeeded\n") == ended(pods.launch(asked))


def test_a_worker_without_the_jobs_key_is_refused(pods: Pods, tmp_path: Path) -> None:
    """Who answers with another host key is not trusted, whatever address it has; nothing runs there."""
    other = tmp_path / "other"
    other.mkdir()
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", str(other / "id_rsa")], check=True, timeout=PATIENCE_S
    )
    stranger = pods.workers[1]
    pods.stop_serving(stranger)
    pods.give_keys(stranger, other)
    pods.inside(stranger, f"cat >{SSH_FOLDER}/authorized_keys", (tmp_path / "id_rsa.pub").read_bytes())
    pods.serve(stranger)
    asked = order()
    code, said = ended(pods.launch(asked))
    assert 1 == code, said
    assert "1 of 3 hosts failed" in said and stranger.name in said and "host key" in said, said
    assert not pods.shared(f"{SHARED}/jobs/{asked.job}").exists()


def test_an_mpijob_of_another_name_than_its_order_is_refused(pods: Pods) -> None:
    """Renamed in one place only it would be told how the job of the old name ended, and train nothing."""
    asked = order()
    pods.inside(pods.launcher, "echo mine-worker-0.mine.ns.svc slots=2 >/etc/mpi/hostfile")
    code, said = ended(pods.launch(asked))
    assert 2 == code, said
    assert f"this MPIJob is mine, but its order (DLAMI_ORDER) is that of the job {asked.job}" in said
    assert not pods.shared(f"{SHARED}/jobs/{asked.job}").exists()
