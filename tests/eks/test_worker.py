"""A worker's sshd, and what becomes of ranks when Kubernetes tells the pod to go; the wait for workers."""

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.errors import ClusterError, ConfigError
from cluster.hosts import Host
from cluster.inventory import ROOT, load_cluster
from cluster.recovery.preemption import departures, due
from eks.image import SSHD
from eks.pods import await_workers, sshd_trouble, write_cluster
from eks.worker import has_ranks, sshd_words
from tests.conftest import PATIENCE_S, wait_for

# Its ranks are there as long as a file is: on this machine others train, too.
SERVE = """
import sys
from pathlib import Path
from eks.worker import PodWorker
notice, ranks, grace_s = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
sys.exit(PodWorker(sys.argv[4:], notice, grace_s, ranks.exists).serve())
"""


def worker(notice: Path, grace_s: float, *sshd: str) -> "subprocess.Popen[bytes]":
    words = [sys.executable, "-c", SERVE, str(notice), f"{notice}.ranks", str(grace_s), *sshd]
    return subprocess.Popen(words, cwd=ROOT)


def test_a_worker_that_is_to_go_waits_for_its_ranks(tmp_path: Path) -> None:
    """The notice is there for the supervisor to find; sshd, over which the ranks are told, ends after them."""
    notice, began = tmp_path / "notice.json", tmp_path / "began"
    ranks = Path(f"{notice}.ranks")
    ranks.touch()
    pod = worker(notice, 600, "sh", "-c", f"touch {began}; exec sleep 600")
    try:
        wait_for(began.exists, 60, "its sshd runs")
        pod.send_signal(signal.SIGTERM)
        wait_for(notice.exists, 60, "the notice is written")
        told = departures({"worker": json.loads(notice.read_text())})
        assert "shutdown" == told[0].kind and due({"worker": json.loads(notice.read_text())}, time.time())
        assert pod.poll() is None
        ranks.unlink()
        assert 128 + signal.SIGTERM == pod.wait(PATIENCE_S)
    finally:
        pod.kill()


def test_a_worker_does_not_wait_longer_than_kubernetes(tmp_path: Path) -> None:
    """A rank that does not leave is left: the time is Kubernetes' own, less what sshd's end takes."""
    began = tmp_path / "began"
    (tmp_path / "notice.ranks").touch()
    pod = worker(tmp_path / "notice", 10.5, "sh", "-c", f"touch {began}; exec sleep 600")
    try:
        wait_for(began.exists, 60, "its sshd runs")
        pod.send_signal(signal.SIGTERM)
        assert 128 + signal.SIGTERM == pod.wait(PATIENCE_S)
    finally:
        pod.kill()


def test_ranks_are_told_by_their_attempt(tmp_path: Path) -> None:
    """Daemons and ranks carry it; the claim of the host carries the job alone, and is no reason to wait."""
    for pid, environ in {"1": b"A=1\0", "7": b"DLAMI_JOB=a\0DLAMI_JOB_FOLDER=/x\0"}.items():
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "environ").write_bytes(environ)
    (tmp_path / "8").mkdir()  # has just ended
    assert not has_ranks(tmp_path)
    (tmp_path / "9").mkdir()
    (tmp_path / "9/environ").write_bytes(b"DLAMI_JOB=a\0DLAMI_ATTEMPT=2\0")
    assert has_ranks(tmp_path)


def test_what_sshd_starts_is_told_where_the_pods_rights_are() -> None:
    """As Pod Identity tells each container; a session would know nothing of it. Nothing else is handed on."""
    told = {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://169.254.170.23/v1/credentials",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "/var/run/secrets/pods.eks.amazonaws.com/serviceaccount/token",
        "AWS_REGION": "us-east-1",
    }
    words = sshd_words({"AWS_SECRET_ACCESS_KEY": "secret", "HOME": "/home/dlami", **told})
    assert [*SSHD, "-o", "SetEnv=" + " ".join(f"{name}={value}" for name, value in told.items())] == words
    assert [*SSHD] == sshd_words({"HOME": "/home/dlami"})


@pytest.mark.parametrize(("sshd", "code"), [(("sh", "-c", "exit 255"), 255), (("true",), 1), (("/nowhere",), 1)])
def test_a_worker_without_its_sshd_ends(tmp_path: Path, sshd: tuple[str, ...], code: int) -> None:
    """With a failure, whatever sshd said: Kubernetes starts it again. A notice of before is gone."""
    notice = tmp_path / "notice"
    notice.write_text("{}")
    assert code == worker(notice, 30, *sshd).wait(PATIENCE_S)
    assert not notice.exists()


@pytest.fixture
def deaf() -> Iterator[int]:
    """A port where something listens that is no sshd."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        import threading

        def greet() -> None:
            while True:
                try:
                    caller, _ = server.accept()
                except OSError:
                    return
                with caller:
                    caller.sendall(b"HTTP/1.1 400\r\n")

        threading.Thread(target=greet, daemon=True).start()
        yield server.getsockname()[1]


def test_what_greets_as_no_sshd_is_none(deaf: int) -> None:
    assert f"what answers on port {deaf} is no sshd" == sshd_trouble("127.0.0.1", deaf)


def test_the_wait_for_workers_ends_and_names_them(tmp_path: Path) -> None:
    """Bounded: an unbounded one keeps a node's GPUs for nobody."""
    hostfile = tmp_path / "hostfile"
    with pytest.raises(ClusterError, match=rf"1 worker of the job cannot be reached: {hostfile}; .*is not there"):
        await_workers(0, lambda: False, hostfile)
    hostfile.write_text("worker-0.job.ns.svc.invalid slots=8\nworker-1.job.ns.svc.invalid slots=8\n")
    with pytest.raises(ClusterError, match=r"2 workers of the job cannot be reached: worker-\[0-1\].*kubectl describe"):
        await_workers(0, lambda: False, hostfile)
    began = time.monotonic()
    with pytest.raises(ClusterError):
        await_workers(10**6, lambda: True, hostfile)  # told to leave meanwhile
    assert time.monotonic() - began < 300


def test_a_folder_of_the_job_is_a_cluster(tmp_path: Path) -> None:
    """What the launcher writes is what tasks read: the launcher as a master that does not train, its workers, the keys."""
    (tmp_path / "id_rsa.pub").write_text("ecdsa-sha2-nistp521 AAAA\n")
    hosts = (Host(rank=0, address="localhost", slots=0), Host(rank=1, address="job-worker-0", slots=8))
    config = write_cluster(tmp_path / "made", hosts, {"name": "job", "shared": "/efs", "notify": 'mail "me"'}, tmp_path)
    cluster = load_cluster(str(tmp_path / "made"))
    assert hosts == cluster.hosts
    assert ("job", "/efs", 'mail "me"') == (cluster.name, cluster.shared, cluster.notify)
    assert "[*]:2222 ecdsa-sha2-nistp521 AAAA\n" == (config.parent / "known_hosts").read_text()
    said = subprocess.run(
        ["ssh", "-G", "-F", str(config), "job-worker-0"], capture_output=True, text=True, timeout=PATIENCE_S
    )
    read = dict(line.partition(" ")[::2] for line in said.stdout.splitlines())
    assert ("2222", "true") == (read["port"], read["stricthostkeychecking"])
    assert str(config.parent / "known_hosts") == read["userknownhostsfile"]


def test_without_the_jobs_secret_a_sentence_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the job's key pair cannot be read: .*id_rsa\.pub"):
        write_cluster(tmp_path / "made", (), {}, tmp_path)
