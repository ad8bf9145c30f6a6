"""What an MPIJob says of a training; code on its way into a job; what is typed and cannot be."""

import base64
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster.code.job_code import put_code
from cluster.code.onhost import store
from cluster.code.snapshot import take
from cluster.errors import ClusterError, ConfigError
from cluster.hosts import Host
from cluster.inventory import ROOT
from cluster.jobs.cleanup import sweep
from cluster.ssh.launcher import CONFIG_VARIABLE
from dlami.collection import GROUPS
from dlami.tasks.eks import check_data
from eks.cluster import load_eks
from eks.code import MOST_BYTES, put_into_store, secret_of
from eks.document import JOB, read
from eks.job_spec import Order
from eks.jobs import job_of, still_there
from eks.mpijob import mpijob as mpijob_of
from lab.kube.kinds import kind
from lab.kube.store import Store
from tests.conftest import PATIENCE_S
from tests.eks.few_pods import FewPods
from tests.eks.orders import flat_order
from tests.typed_words import help_kept, typed

CREATED = "2026-11-23T08:00:00Z"
NOW = 1795420800.0 + 90  # 90 s after that


def mpijob(*conditions: tuple[str, str, str], **replicas: dict[str, int]) -> dict[str, Any]:
    return {
        "metadata": {"name": "resnet50-1", "creationTimestamp": CREATED},
        "spec": {"mpiReplicaSpecs": {"Worker": {"replicas": 4}}},
        "status": {
            "conditions": [{"type": kind, "status": status, "message": text} for kind, status, text in conditions],
            "replicaStatuses": replicas,
        },
    }


@pytest.mark.parametrize(
    ("said", "state", "why"),
    [
        (mpijob(), "waiting", ""),
        (mpijob(("Created", "True", "")), "waiting", ""),
        (mpijob(("Created", "True", ""), ("Running", "True", "")), "running", ""),
        (mpijob(("Running", "False", ""), ("Succeeded", "True", "")), "succeeded", ""),
        (mpijob(("Running", "True", ""), ("Failed", "True", "Job has\n reached")), "failed", "Job has reached"),
        (mpijob(("Running", "False", ""), ("Suspended", "True", "")), "suspended", ""),
        ({**mpijob(), "status": None}, "waiting", ""),
    ],
)
def test_a_job_is_what_its_conditions_say(said: dict[str, Any], state: str, why: str) -> None:
    """By mpi-operator's conditions, the last word first; one that has just been made has none."""
    job = job_of(said, NOW)
    assert (state, why, 4, 90.0) == (job.state, job.why, job.nodes, job.age_s)
    assert job.is_over == (state in ("succeeded", "failed"))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    (folder / "src").mkdir(parents=True)
    (folder / "src/train.py").write_text("print('trains')\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    for words in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *words], cwd=folder, check=True, timeout=PATIENCE_S)
    return folder


def mounted(secret: dict[str, Any], folder: Path) -> Path:
    """A Secret as a pod sees it."""
    folder.mkdir()
    for name, value in secret["data"].items():
        (folder / name).write_bytes(base64.b64decode(value))
    return folder


def test_code_arrives_in_the_jobs_folder(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through a Secret into the launcher's store, and from there as every job has it: bytes, modes, below."""
    monkeypatch.setattr(store, "FOLDER", str(tmp_path / "store"))
    snapshot = take(repository / "src")
    secret = secret_of(snapshot, "job-1", "imagenet", "dlami")
    assert ("Secret", "job-1-code", "job-1") == (
        secret["kind"],
        secret["metadata"]["name"],
        secret["metadata"]["labels"]["dlami/job"],
    )
    folder, job = mounted(secret, tmp_path / "mounted"), tmp_path / "shared/jobs/job-1"
    job.mkdir(parents=True)
    for _ in range(2):  # a launcher that is started again finds it there
        put_into_store(folder, snapshot.digest)
    put_code(job, snapshot.digest)
    assert "print('trains')\n" == (job / "code/src/train.py").read_text()
    assert os.access(job / "code/run.sh", os.X_OK)
    assert "src" == snapshot.below


def test_code_that_is_too_much_for_a_secret_is_refused(repository: Path) -> None:
    """Before anything is made, and with what else there is."""
    (repository / "weights.py").write_bytes(os.urandom(MOST_BYTES + 1))
    with pytest.raises(ConfigError, match=r"1\.0 MB when compressed.*--exclude.*--no-code"):
        secret_of(take(repository, include=["weights.py"]), "job-1", "imagenet", "dlami")


def test_code_that_was_cut_off_is_not_taken(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "FOLDER", str(tmp_path / "store"))
    snapshot = take(repository)
    folder = mounted(secret_of(snapshot, "job-1", "imagenet", "dlami"), tmp_path / "mounted")
    (folder / "code.tar.gz").write_bytes((folder / "code.tar.gz").read_bytes()[:-20])
    with pytest.raises(ClusterError, match="the code of this job"):
        put_into_store(folder, snapshot.digest)


CLUSTER_FILE = """\
name = "imagenet"
[nodes]
instance_type = "g5.12xlarge"
workers = 1
[eks]
image = "registry.example/dlami:1"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "cluster.toml").write_text(CLUSTER_FILE)
    return tmp_path


def inv(folder: Path, *words: str, cwd: Path = ROOT) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "dlami.program", *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, "CLUSTER": str(folder), "PYTHONPATH": str(ROOT), "DLAMI_KUBECTL": "/nowhere/kubectl"},
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--np", "9"), "9 ranks asked for, 2 nodes of g5.12xlarge have 8 slots"),
        (("--nodes", "3"), "3 nodes asked for, nodes.workers"),
        (("--np", "0"), "--np is '0'"),
        (("--name", "3d"), "begins with a letter"),
        (("--min-np", "9"), "--min-np is 9"),
        (("--env", "AWS_SECRET_ACCESS_KEY=x"), "visible"),
        ((), "/nowhere/kubectl cannot be started"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(folder: Path, words: tuple[str, ...], said: str) -> None:
    done = inv(folder, "eks.train.resnet50", *words, "--", "--synthetic")
    assert 0 != done.returncode
    assert said in done.stderr and "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize("page", ["tensorboard", "jupyter"])
def test_a_password_is_for_a_page_that_networks_see(page: str, folder: Path, tmp_path: Path) -> None:
    """Given for one that a port-forward alone leads to, it would protect nothing: refused before a pod is asked for."""
    (tmp_path / "password").write_text("long enough to be one\n")
    done = inv(folder, f"eks.{page}", "--password-file", str(tmp_path / "password"))

    assert 2 == done.returncode
    assert "a password is for eks.allow_cidrs; without it a port-forward alone leads to the page" in done.stderr


@pytest.mark.parametrize("mode", ["resnet50", "resnet50-torch", "maskrcnn", "benchmark"])
def test_each_training_is_typed_as_on_hosts(
    mode: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What would be made starts its trainer with the words after `--`."""
    monkeypatch.setenv("CLUSTER", str(folder))
    word = "DATA.BASEDIR=/efs/coco" if mode == "maskrcnn" else "--synthetic"
    assert 0 == typed(f"eks.train.{mode}", "--dry-run", "--", word)
    (job,) = read(capsys.readouterr().out)
    launcher = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    order = Order.from_json({e["name"]: e["value"] for e in launcher["env"]}["DLAMI_ORDER"])
    assert (f"trainer.{mode.replace('-', '_')}", (word,)) == (order.spec.program.trainer, order.spec.program.words)


def test_jobs_are_listed_read_and_stopped(
    store: Store, logs: FewPods, operators_kubectl: None, folder: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """By the tasks as they are typed, through the real kubectl; what is not there is said with where to look."""
    monkeypatch.setenv("CLUSTER", str(folder))
    of = load_eks()
    job = mpijob_of(of, flat_order(job="resnet50-1"), 2)
    space = of.settings.namespace
    store.create(kind("Namespace"), "", {"metadata": {"name": space}})
    store.create(kind("MPIJob"), space, job)
    assert 0 == typed("eks.jobs.list", "--json")
    (listed,) = json.loads(capfd.readouterr().out)
    assert ("resnet50-1", "waiting", 2) == (listed["id"], listed["state"], listed["nodes"])

    assert 0 == typed("eks.jobs.logs", "last")
    assert "resnet50-1 has said nothing yet" in capfd.readouterr().err
    labels = {JOB: "resnet50-1", "dlami/role": "launcher"}
    container = {"name": "launcher", "image": "i"}
    running = {"name": "launcher", "ready": True, "restartCount": 0, "state": {"running": {}}}
    store.create(
        kind("Pod"),
        space,
        {
            "metadata": {"name": "talker", "labels": labels},
            "spec": {"containers": [container]},
            "status": {"phase": "Running", "containerStatuses": [running]},
        },
    )
    logs.file.write_text("step 1\n")
    assert 0 == typed("eks.jobs.logs", "last")
    said = capfd.readouterr()
    assert "step 1\n" == said.out, said.err
    store.delete(kind("Pod"), space, "talker", grace_s=0)

    assert 0 == typed("eks.jobs.stop", "resnet50", "--dry-run")
    assert "resnet50-1: waiting, would be stopped" in capfd.readouterr().out
    assert 0 == typed("eks.jobs.stop", "resnet50")
    assert "resnet50-1: stopped" in capfd.readouterr().out
    assert [] == store.listed(kind("MPIJob"))
    assert 2 == typed("eks.jobs.logs", "resnet50")
    assert "see 'inv eks.jobs.list'" in capfd.readouterr().err


def test_each_training_is_there_with_the_flags_that_it_has_on_hosts() -> None:
    """But for what names hosts, queues, and packages that belong into the image; `dry-run`, `nodes`, `resume` besides."""
    only_on_hosts = {"hosts", "exclusive", "queue", "requirements", "venv", "conda", "container", "bind"}
    not_started = {"plot", "scaling", "matrix", "estimate"}  # of trainings that have run, or that are none
    on_hosts = {task.name: task for task in GROUPS["train"] if task.name not in not_started}
    on_pods = {task.name: task for task in GROUPS["eks.train"]}
    assert on_hosts.keys() == on_pods.keys()
    for name, task in on_hosts.items():
        with help_kept():
            there, here = ({a.name for a in one.get_arguments()} for one in (task, on_pods[name]))
        assert there - only_on_hosts <= here, name
        own = {"nodes", "resume", "from-scratch", "from_scratch", "begin-from", "begin_from", "dry-run", "dry_run"}
        assert here - there <= own, name


def test_a_pod_that_is_gone_has_left_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a name, or without the sshd that it is there for; a host that cannot be asked has not been looked at."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.3", 0))
        port = closed.getsockname()[1]
        gone = [Host(rank=n, address=a, slots=1) for n, a in enumerate(("job-1-worker-0.invalid", "127.0.0.3"), 1)]
        said = sweep(gone, "job-1").left
        assert "job-1-worker-0.invalid: its address does not resolve: look at the hostfile" in said and 2 == len(said)
        (tmp_path / "ssh_config").write_text(f"Host *\n    Port {port}\n")
        monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "ssh_config"))
        assert () == sweep(gone, "job-1").left


def test_a_pod_that_has_ended_keeps_no_stop_waiting() -> None:
    """It stays listed for a while after its MPIJob is deleted; one that runs, waits or is unknown is waited for."""
    phases = ("Pending", "Running", "Succeeded", "Failed", "Unknown")
    pods: list[Any] = [{"metadata": {"name": phase}, "status": {"phase": phase}} for phase in phases]

    assert ["Pending", "Running", "Unknown"] == [p["metadata"]["name"] for p in still_there(pods)]
    assert [{"metadata": {}}] == still_there([{"metadata": {}}])


@pytest.mark.parametrize(
    ("module", "words", "is_refused"),
    [
        ("trainer.maskrcnn", ["TRAIN.BASE_LR=0.01"], True),
        ("trainer.maskrcnn", ["DATA.BASEDIR=/efs/data/coco"], False),
        ("trainer.maskrcnn", ["--config", "DATA.BASEDIR=/efs/data/coco"], False),
        ("trainer.resnet50", ["--model", "resnet18"], True),
        ("trainer.resnet50", ["--data-dir=/efs/data"], False),
        ("trainer.resnet50_torch", ["--synthetic"], False),
        ("trainer.resnet50_torch", [], True),
        ("trainer.benchmark", [], False),
    ],
)
def test_a_training_without_data_starts_no_pods(module: str, words: list[str], is_refused: bool) -> None:
    """They would fail and start again for a minute before the trainer's own word is seen."""
    if not is_refused:
        check_data(module, words)
        return
    with pytest.raises(ConfigError, match="nothing was started: give "):
        check_data(module, words)
