"""Trainings, stagings and pages from the operator's seat: what is said and made of what a Kubernetes in memory answers."""

import base64
import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.errors import ClusterError, ConfigError, NothingToDo
from cluster.jobs.program import Program
from cluster.jobs.record import JobPaths, JobStatus, TrainingProgress
from cluster.jobs.spec import JobSpec
from cluster.jobs.state import JobState
from cluster.recovery.failure_kinds import FailureKind
from cluster.ssh.onhost.frame import framed
from dlami.tasks import eks as typed_eks
from dlami.tasks.eks import EksTrainOptions
from eks import job_view, page_client, progress, staging_client
from eks import jobs as eks_jobs
from eks import launcher as launchers
from eks.job_spec import ORDER_VARIABLE, Order
from eks.jobs import EksJobs
from eks.kubectl import KubectlError
from eks.launcher import LauncherPod, exit_code
from eks.page_client import PodPage
from eks.pods import await_workers, mpijob_name
from eks.services import JUPYTER, TENSORBOARD
from eks.staging import StagingJob
from eks.staging_client import INDEX
from tests.conftest import PATIENCE_S, wait_for
from tests.eks.clusters import VARIANTS
from tests.eks.orders import flat_order

CLUSTER = VARIANTS["least"]


class Objects:
    """A Kubernetes in memory. What comes to pass between two looks stands in `then`."""

    def __init__(self) -> None:
        self.kinds: dict[str, list[dict[str, Any]]] = {}
        self.then: list[Any] = []
        self.refuses: set[str] = set()
        self.said: list[str] = []

    def get(self, kind: str, name: str = "", *, selector: str = "") -> list[dict[str, Any]]:
        if kind == KIND and self.then:
            self.then.pop(0)()
        wanted = dict(pair.split("=") for pair in selector.split(",") if pair)
        found = self.kinds.get(kind, [])
        return [
            one
            for one in found
            if (not name or one["metadata"]["name"] == name)
            and wanted.items() <= one["metadata"].get("labels", {}).items()
        ]

    def create(self, documents: Any) -> list[dict[str, Any]]:
        for one in documents:
            kind = KIND if one["kind"] == "MPIJob" else one["kind"].lower()
            if kind in self.refuses:
                raise KubectlError(f"{kind} is forbidden")
            self.kinds.setdefault(kind, []).append({**one, "metadata": {"uid": "u1", **one["metadata"]}})
        return [self.kinds[KIND if d["kind"] == "MPIJob" else d["kind"].lower()][-1] for d in documents]

    apply = create

    def delete(self, kind: str, name: str, *, wait_s: float = 0) -> bool:
        if f"delete {kind}" in self.refuses:
            raise KubectlError("it is held")
        left = [one for one in self.kinds.get(kind, []) if one["metadata"]["name"] != name]
        was_there = len(left) < len(self.kinds.get(kind, []))
        self.kinds[kind] = left
        return was_there

    def logs(self, pod: str, *, follow: bool = False, raw: bool = False) -> int:
        self.said.append(f"{pod} {'followed' if follow else 'read'}")
        return 0

    def tail(self, pod: str, lines: int) -> str:
        return str(next(p["log"] for p in self.kinds["pods"] if p["metadata"]["name"] == pod))


KIND = eks_jobs.KIND


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> Objects:
    """An empty Kubernetes, which has all that pods stand on."""
    made = Objects()
    for module in (eks_jobs, staging_client, page_client):
        monkeypatch.setattr(module, "Kubectl", lambda *_: made)
        monkeypatch.setattr(module, "require", lambda *_: None)
        monkeypatch.setattr(module, "_LOOK_S", 0.0)
    return made


def training(name: str = "a-1", kind: str = "Running", age: str = "08", **status: Any) -> dict[str, Any]:
    conditions = [{"type": kind, "status": "True", "message": "it\n broke"}]
    return {
        "kind": "MPIJob",
        "apiVersion": "v2beta1",
        "metadata": {
            "name": name,
            "creationTimestamp": f"2026-01-01T{age}:00:00Z",
            "labels": {"dlami/cluster": CLUSTER.object_name},
        },
        "spec": {"mpiReplicaSpecs": {"Worker": {"replicas": 2}}},
        "status": {"conditions": conditions, **status},
    }


def pod(name: str, role: str, state: str = "running", phase: str = "Running", **more: Any) -> dict[str, Any]:
    labels = {eks_jobs.JOB: "a-1", "dlami/role": role}
    status = {"phase": phase, "containerStatuses": [{"state": {state: {}}, "containerID": name}], **more}
    return {"metadata": {"name": name, "labels": labels, "creationTimestamp": more.get("at", "1")}, "status": status}


def test_a_job_is_found_by_its_id_or_a_part_of_it(objects: Objects) -> None:
    """A whole id before parts of others, `last` is the youngest; what could be two is none."""
    objects.kinds[KIND] = [training("b-12", age="09"), training("a-1", age="08"), training("b-1", age="10")]
    jobs = EksJobs(CLUSTER)

    assert ["a-1", "b-12", "b-1"] == [job.id for job in jobs.list()]
    assert ["b-1", "b-1", "b-12", "a-1"] == [jobs.find(which).id for which in ("last", "b-1", "12", "a")]
    with pytest.raises(ConfigError, match=r"^'1' could be any of a-1, b-12, b-1: give more of it$"):
        jobs.find("1")
    with pytest.raises(ConfigError, match=r"^no job 'x' in Kubernetes: see .* stays in /efs/jobs$"):
        jobs.find("x")
    objects.kinds[KIND] = []
    with pytest.raises(ConfigError, match="no job 'last'"):
        jobs.find("last")


def test_a_job_takes_what_belongs_to_it_along(objects: Objects) -> None:
    """Its Secrets are its own; one of its name that has ended makes room, one that goes on does not."""
    secret = {"kind": "Secret", "metadata": {"name": "code", "labels": {}}}
    objects.kinds[KIND] = [training("a-1", "Failed")]
    jobs = EksJobs(CLUSTER)
    jobs.start(training("a-1"), [secret])
    assert [1, 1] == [len(objects.kinds[kind]) for kind in (KIND, "secret")]
    owner = {"apiVersion": "v2beta1", "kind": "MPIJob", "name": "a-1", "uid": "u1"}
    assert [owner] == objects.kinds["secret"][0]["metadata"]["ownerReferences"]
    with pytest.raises(ConfigError, match=r"^a-1 is running: 'inv eks.jobs.stop a-1' first$"):
        jobs.start(training("a-1"))
    objects.refuses.add("secret")
    with pytest.raises(KubectlError):
        jobs.start(training("a-2"), [secret])
    assert ["a-1"] == [one["metadata"]["name"] for one in objects.kinds[KIND]]
    jobs.start(training("a-3"))


def test_a_job_is_followed_over_its_launchers(objects: Objects, capsys: pytest.CaptureFixture[str]) -> None:
    """What is waited for is said once; each launcher's log is printed once; it ends as the job does."""
    objects.kinds[KIND] = [training()]
    unscheduled = [{"type": "PodScheduled", "status": "False", "message": "no room"}]
    waiting = pod("w-1", "worker", "waiting", containerStatuses=[], conditions=unscheduled)
    ready = pod("w-0", "worker", conditions=[{"type": "Ready", "status": "True"}])

    def pods(*found: dict[str, Any]) -> Any:
        return lambda: objects.kinds.update(pods=list(found))

    def over() -> None:
        objects.kinds[KIND] = [training(kind="Failed")]

    nothing = pods(ready, waiting)
    objects.then = [
        nothing,
        nothing,
        pods(pod("l-0", "launcher", "waiting")),
        pods(pod("l-0", "launcher")),
        pods(pod("l-0", "launcher")),
        pods(pod("l-0", "launcher"), pod("l-1", "launcher", at="2")),
        over,
    ]
    assert 1 == EksJobs(CLUSTER).follow("a-1")
    assert ["l-0 followed", "l-1 followed"] == objects.said
    assert [
        "1 of 2 workers are ready; w-1: no room",
        "its launcher starts: it is being scheduled",
        "a-1: failed: it broke",
    ] == capsys.readouterr().err.splitlines()


def test_a_job_that_is_over_is_read_once(objects: Objects, capsys: pytest.CaptureFixture[str]) -> None:
    """Its pods may be gone; one that somebody stops meanwhile is said to be gone."""
    jobs = EksJobs(CLUSTER)
    objects.kinds = {KIND: [training(kind="Succeeded")], "pods": [pod("l-0", "launcher", "terminated")]}
    assert 0 == jobs.logs("a-1", follow=True)
    assert ["l-0 read"] == objects.said
    assert 0 == jobs.logs("a-1", follow=False)
    assert ["l-0 read", "l-0 read"] == objects.said
    objects.kinds["pods"] = []
    assert 0 == jobs.follow("a-1")
    assert ["a-1: succeeded"] * 2 == capsys.readouterr().err.splitlines()
    with pytest.raises(NothingToDo, match=r"^a-1 has ended, and Kubernetes has removed its pods: /efs/jobs/a-1/logs"):
        jobs.logs("a-1", follow=False)
    objects.kinds[KIND] = [training()]
    with pytest.raises(NothingToDo, match=r"^a-1 has said nothing yet: 0 of 2 workers are ready$"):
        jobs.logs("a-1", follow=False)
    objects.kinds["pods"] = [pod("l-0", "launcher", "waiting")]
    with pytest.raises(NothingToDo, match=r"^a-1 has said nothing yet: its launcher starts: it is being scheduled$"):
        jobs.logs("a-1", follow=False)
    objects.then = [lambda: None, lambda: objects.kinds.update({KIND: []})]
    with pytest.raises(ConfigError, match=r"^a-1 is not there any more: somebody has stopped it$"):
        jobs.follow("a-1")


def test_what_is_left_is_asked_of_launchers_that_run(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of jobs that are over, nor of pods that still wait."""
    objects.kinds = {
        KIND: [training(), training("b-1", "Succeeded")],
        "pods": [pod("l-0", "launcher", phase="Pending")],
    }
    monkeypatch.setattr(eks_jobs, "ask", lambda _kubectl, name: None)
    assert {} == EksJobs(CLUSTER).left_s()
    objects.kinds["pods"] = [pod("l-0", "launcher")]
    assert {"a-1": None} == EksJobs(CLUSTER).left_s()


def test_a_training_is_shown_with_its_pods_and_how_far_it_is(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was asked for, what each pod waits for; who cannot be asked is no error of the command."""
    order = flat_order(words=("--lr", "0.1 x"), module="trainer.resnet50")
    made = training()
    container = {"env": [{"name": ORDER_VARIABLE, "value": order.to_json()}]}
    made["spec"]["mpiReplicaSpecs"]["Launcher"] = {"template": {"spec": {"containers": [container]}}}
    no_room = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node has 8 GPUs"}
    waits = pod("w-0", "worker", "x", phase="Pending", conditions=[no_room])
    objects.kinds = {KIND: [made, training("b-1", "Failed")], "pods": [pod("l-0", "launcher"), waits]}
    monkeypatch.setattr(
        job_view, "ask", lambda _kubectl, name: TrainingProgress(step=7, time=1.0, images_per_s=2.0, left_s=90.0)
    )

    def shown(name: str) -> job_view.EksJobView:
        return job_view.view(EksJobs(CLUSTER).kubectl, name, "/efs")

    text, told = str(shown("a-1")), shown("a-1").to_json()
    for fact in (
        "running",
        "step 7, 2.0 images/s, 1m left",
        "trainer.resnet50 --lr '0.1 x'",
        "/efs/jobs/a-1",
        "no node has 8",
    ):
        assert fact in text
    assert ("a-1", "running", 7, "Running") == (
        told["id"],
        told["state"],
        told["progress"]["step"],
        told["pods"]["l-0"],
    )
    json.dumps(told)
    monkeypatch.setattr(job_view, "ask", silent)
    assert "l-0 does not say" in str(shown("a-1"))
    assert "failed: it broke" in str(shown("b-1"))


PROGRAM = Program(words=("x",))


def silent(_kubectl: Any, pod: str) -> Any:
    raise ClusterError(f"{pod} does not say how far its training is")


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ({"from_scratch": True}, "--from-scratch goes with --resume"),
        ({"begin_from": "b-1", "resume": "a-1"}, "give one of them"),
    ],
)
def test_a_beginning_is_of_one_kind(typed: dict[str, Any], told: str) -> None:
    """Before anything is started."""
    with pytest.raises(ConfigError, match=told):
        typed_eks._order(CLUSTER, EksTrainOptions(profile="", **typed), "name", PROGRAM)


def test_a_new_job_may_begin_with_an_older_one_s_checkpoint() -> None:
    """Of its id, which the launcher gets; an attempt that may begin anew is asked for once, by its submission."""
    given = EksTrainOptions(profile="", begin_from="b-1")
    order = Order.from_json(typed_eks._order(CLUSTER, given, "name", PROGRAM).to_json())
    assert "b-1" == order.spec.begins_from
    again = Order.from_json(
        typed_eks._order(CLUSTER, EksTrainOptions(resume="a-1", from_scratch=True), "n", PROGRAM).to_json()
    )
    assert ("a-1", True, "") == (again.job, again.from_scratch, again.spec.begins_from)


@pytest.mark.parametrize(("kept", "words"), [("older", ("--from-scratch-attempt", "3")), ("s", ())])
def test_a_launcher_that_is_started_again_does_not_begin_anew(
    kept: str, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator allowed it for the attempt that --resume began, not for those that follow."""
    launcher = LauncherPod.__new__(LauncherPod)
    launcher._order = flat_order(submission="s", module="m", shared=str(tmp_path), from_scratch=True)
    launcher._paths, launcher._folder = JobPaths(tmp_path / "jobs/a-1"), tmp_path / "kept"
    launcher._folder.mkdir()
    launcher._paths.folder.mkdir(parents=True)
    (launcher._folder / "submission").write_text(kept)
    begun: list[Any] = []
    spec = JobSpec(name="a", program=Program(trainer="m", words=()))
    monkeypatch.setattr(launcher, "_settled", lambda: JobStatus(state=JobState.FAILED, attempt=2))
    monkeypatch.setattr(launcher, "_final", lambda _status: None)
    monkeypatch.setattr(launcher, "_reached", lambda: SimpleNamespace(hosts=()))
    monkeypatch.setattr(launcher, "_followed", lambda: 0)
    monkeypatch.setattr(launchers, "that_train", lambda _hosts: ())
    monkeypatch.setattr(launchers, "view", lambda _paths: SimpleNamespace(status=SimpleNamespace(attempt=2)))
    monkeypatch.setattr(launchers, "next_attempt", lambda *_: spec)
    monkeypatch.setattr(launchers, "Executor", lambda _cluster: contextlib.nullcontext())
    monkeypatch.setattr(
        launchers, "JobsClient", lambda *_: SimpleNamespace(plan=lambda spec, **_: spec, submit=begun.append)
    )

    assert 0 == launcher._seen_through()
    assert [words] == [one.program.words for one in begun]


# Staging -------------------------------------------------------------------------------------------------------------

RESULT = {"files": 1, "bytes": 8, "skipped": 0, "seconds": 1.0, "objects": 1, "num_failed": 0}


def stage_pod(name: str, index: int, phase: str, log: bytes, **more: Any) -> dict[str, Any]:
    state = {"running": {}} if phase == "Running" else {"terminated": {"exitCode": int(phase == "Failed")}}
    return {
        "metadata": {"name": name, "labels": {INDEX: str(index), "s": "1"}, "creationTimestamp": more.get("at", "1")},
        "spec": {"nodeName": f"node-{name}"},
        "status": {"phase": phase, "containerStatuses": [{"name": "stage", "state": state}]},
        "log": log.decode(),
    }


@pytest.mark.parametrize("as_json", [False, True])
def test_a_staging_says_how_it_went_per_node_and_is_cleared_away(
    objects: Objects, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    """Of each index its last pod's word; of one that no pod ran that; nothing of the Job or its Secret stays."""
    secret = {"kind": "Secret", "metadata": {"name": "stage-1"}}
    document = {
        "kind": "Job",
        "metadata": {"name": "stage-1"},
        "status": {"conditions": [{"type": "Complete", "status": "True"}]},
    }
    job = StagingJob(name="stage-1", pods=3, documents=[document], environment=secret)
    objects.kinds["pods"] = [
        stage_pod("p-0", 0, "Failed", b"a\nlast\n"),
        stage_pod("p-0b", 0, "Succeeded", framed({"result": RESULT}), at="2"),
        stage_pod("p-1", 1, "Failed", b"one\nlast\n"),
    ]
    for one in objects.kinds["pods"]:
        one["metadata"]["labels"].update(dict(pair.split("=") for pair in job.selector.split(",")))

    assert 1 == staging_client.run_staging(CLUSTER, job, as_json=as_json)
    said = capsys.readouterr()
    assert [[], []] == [objects.kinds["job"], objects.kinds["secret"]]
    if as_json:
        rows = [json.loads(line) for line in said.out.splitlines()]
        assert [("node-p-0b", 0, "p-0b", None), ("node-p-1", 1, "p-1"), ("pod 2", 2, None)] == [
            (rows[0]["node"], rows[0]["index"], rows[0]["pod"], rows[0]["error"]),
            *((row["node"], row["index"], row["pod"]) for row in rows[1:]),
        ]
        assert 8 == rows[0]["bytes"]
        assert "" == said.err
    else:
        assert [
            "node-p-0b  1 moved, 0.0 MB, 0.0 MB/s; 0 were there",
            "node-p-1  FAILED: its container stage ended with 1; its last line: last",
            "pod 2  FAILED: no pod of it ever ran",
        ] == said.out.splitlines()
        assert "2 of 3 pods failed: p-1; run it again: what arrived is not moved twice\n" == said.err
    objects.refuses |= {"delete job", "delete secret"}
    staging_client._clear(objects, job)
    assert ["job stage-1 stays: it is held", "secret stage-1 stays: it is held"] == capsys.readouterr().err.splitlines()


# Pages ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def served(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> Objects:
    """Deployments serve at once; a port-forward leads to a port that answers until Ctrl-C."""
    forwards: list[int] = []

    @contextlib.contextmanager
    def forward(_target: str, _port: int, local_port: int = 0) -> Iterator[int]:
        forwards.append(local_port)
        if len(forwards) > 2:
            raise KeyboardInterrupt
        yield 4000

    made = objects.create

    def create(documents: Any) -> Any:
        return made([{**d, "status": {"availableReplicas": 1}} for d in documents])

    monkeypatch.setattr(objects, "forward", forward, raising=False)
    monkeypatch.setattr(objects, "create", create)
    monkeypatch.setattr(objects, "apply", create)
    monkeypatch.setattr(page_client, "_answers", lambda _port: False)
    objects.said = forwards  # type: ignore[assignment]
    return objects


@pytest.mark.parametrize("page", [JUPYTER, TENSORBOARD], ids=["jupyter", "tensorboard"])
def test_a_page_is_looked_at_until_ctrl_c_and_is_gone(
    served: Objects, capsys: pytest.CaptureFixture[str], page: Any
) -> None:
    """A lost port-forward is made anew at the same port; one that others had begun goes on."""
    shown: list[str] = []
    PodPage(CLUSTER, page).look(lambda one: shown.append(one.url))
    assert 2 == len(shown)
    assert [0, 4000, 4000] == served.said
    assert shown[0].startswith("http://127.0.0.1:4000/lab?token=" if page is JUPYTER else "http://127.0.0.1:4000/")
    assert [[], [], []] == [served.kinds[kind] for kind in ("deployment", "service", "secret")]
    assert "has ended" in capsys.readouterr().err

    name = page.name(CLUSTER)
    for kind in ("deployment", "service", "networkpolicy"):
        served.kinds[kind] = [{"kind": kind, "metadata": {"name": name}, "status": {"availableReplicas": 1}}]
    token = base64.b64encode(b"kept").decode()
    served.kinds["secret"] = [{"kind": "Secret", "metadata": {"name": name}, "data": {"token": token}}]
    served.said.clear()
    PodPage(CLUSTER, page).look(lambda one: shown.append(one.url))
    assert "kept" in shown[-1]
    assert f"{name} goes on, others began it" in capsys.readouterr().err
    assert 1 == len(served.kinds["secret"])
    served.kinds["secret"][0]["data"] = {}
    with pytest.raises(ConfigError, match=f"^{name} is served by TLS, from when eks.allow_cidrs was set"):
        PodPage(CLUSTER, page).look(lambda _: None)
    with pytest.raises(ConfigError, match=f"^{name} is there already: 'inv eks.{page.kind} --end' ends it$"):
        PodPage(CLUSTER, page).open("x")
    assert ["deployment", "service", "networkpolicy", "secret"] == PodPage(CLUSTER, page).end()
    assert [] == PodPage(CLUSTER, page).end()
    with pytest.raises(ClusterError, match="was ended meanwhile"):
        PodPage(CLUSTER, page)._await_pod()


def test_a_page_for_networks_has_its_load_balancer_s_name(served: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its certificate's fingerprint; where none comes nothing of it stays."""
    status = {"availableReplicas": 1, "loadBalancer": {"ingress": [{"hostname": "lb.example"}]}}

    def create(documents: Any) -> None:
        for one in documents:
            served.kinds.setdefault(one["kind"].lower(), []).append({**one, "status": status})

    opened = VARIANTS["open"]
    with monkeypatch.context() as patched:
        patched.setattr(served, "apply", create)
        shown = PodPage(opened, JUPYTER).open("hashed")
    assert "https://lb.example/" == shown.url
    assert shown.fingerprint
    PodPage(opened, JUPYTER).end()
    monkeypatch.setattr(page_client, "_BALANCER_S", -1.0)
    with pytest.raises(ClusterError, match="got no load balancer within -1 s"):
        PodPage(opened, JUPYTER).open("hashed")
    assert [] == served.kinds["secret"]


# What is typed -------------------------------------------------------------------------------------------------------


def test_a_training_is_started_and_followed(
    objects: Objects, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its task ends with its exit code; detached it is left alone, and a dry run makes nothing."""
    monkeypatch.setattr("eks.cluster.load_eks", lambda: CLUSTER)
    monkeypatch.setattr("sys.argv", ["inv", "--", "--synthetic"])
    typed_eks._train("trainer.resnet50_torch", "a", EksTrainOptions(dry_run=True), python="/py")
    document = capsys.readouterr().out
    assert "trainer.resnet50_torch" in document
    assert "/py" in document
    assert {} == objects.kinds
    typed_eks._train("trainer.resnet50", "a", EksTrainOptions(detach=True))
    assert 1 == len(objects.kinds[KIND])
    assert ": 2 nodes in namespace dlami, in /efs/jobs/a-" in capsys.readouterr().err
    monkeypatch.setattr(EksJobs, "follow", lambda *_: 3)
    with pytest.raises(typed_eks.Exit) as ended_with:
        typed_eks._train("trainer.resnet50", "b", EksTrainOptions())
    assert 3 == ended_with.value.code


# The launcher and its pods -------------------------------------------------------------------------------------------


def test_a_launcher_s_exit_says_whether_it_is_started_again(tmp_path: Path) -> None:
    """Not what has succeeded or was stopped; what was meant for the pod alone is; an operator may begin it anew."""
    order = flat_order(shared=str(tmp_path))
    launcher = LauncherPod.__new__(LauncherPod)
    launcher._order, launcher._folder = order, tmp_path / ".eks"
    launcher._paths = JobPaths(tmp_path / "jobs/a-1")

    def status(state: JobState, by: FailureKind | None = None) -> JobStatus:
        return JobStatus(state=state, ended_by=by) if by else JobStatus(state=state)

    table = [
        (status(JobState.SUCCEEDED), 0, 0),
        (status(JobState.FAILED), 1, 1),
        (status(JobState.FAILED, FailureKind.STOPPED), 0, 0),
        *(
            (status(JobState.FAILED, by), None, 143)
            for by in (FailureKind.SUPERVISOR, FailureKind.MASTER, FailureKind.NOTICE)
        ),
    ]
    for one, final, code in table:
        assert (final, code) == (launcher._final(one), exit_code(one))
    assert launcher._final(status(JobState.LOST)) is None
    launcher._order = flat_order(heal=False)
    assert [1, 143, 1] == [
        launcher._final(status(*how))
        for how in ((JobState.LOST,), (JobState.FAILED, FailureKind.MASTER), (JobState.FAILED,))
    ]
    launcher._keep_submission()
    assert "s1" == (tmp_path / ".eks/submission").read_text()
    assert 1 == launcher._final(status(JobState.FAILED)), "it is the same submission"
    (tmp_path / ".eks/submission").write_text("s0")
    assert [None, None] == [launcher._final(status(s)) for s in (JobState.FAILED, JobState.LOST)]
    assert 0 == launcher._final(status(JobState.SUCCEEDED))


def test_workers_are_hosts_once_their_sshd_greets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the time is over, or the launcher is told to leave; those that do not answer are named."""
    (tmp_path / "hostfile").write_text("10.0.0.9 slots=4\n")
    monkeypatch.setattr("eks.pods.sshd_trouble", lambda address: "")
    found = await_workers(0, lambda: False, tmp_path / "hostfile")
    assert [(0, "localhost", 0), (1, "10.0.0.9", 4)] == [(h.rank, h.address, h.slots) for h in found]
    monkeypatch.setattr("eks.pods.sshd_trouble", lambda address: "port 2222: refused")
    with pytest.raises(
        ClusterError, match=r"^after 0 s 1 worker of the job cannot be reached: 10.0.0.9; 10.0.0.9: port"
    ):
        await_workers(-1, lambda: False, tmp_path / "hostfile")
    with pytest.raises(ClusterError, match=r"told to end: after 0 s 1 worker .* is not there"):
        await_workers(900, lambda: True, tmp_path / "none")
    (tmp_path / "hostfile").write_text("a-1-worker-0.a-1.default.svc slots=4\n")
    assert ["a-1", ""] == [mpijob_name(tmp_path / name) for name in ("hostfile", "none")]


def test_a_launcher_tells_how_far_it_is_while_it_lasts(tmp_path: Path) -> None:
    """Nothing of a job that is not there; afterwards nobody answers."""
    with progress.serve_progress(JobPaths(tmp_path / "none"), 0) as port:
        answer = json.loads(progress._read(port))
    assert {"progress": None, "trouble": ""} == answer
    assert b"" == progress._read(port)
    wait_for(lambda: "progress" not in [t.name for t in threading.enumerate()], PATIENCE_S, "its thread ends")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def tell() -> None:
            raw = server.accept()[0]
            with contextlib.suppress(OSError), raw:
                raw.sendall(b"x" * (1 << 18))

        thread = threading.Thread(target=tell)
        thread.start()
        assert (1 << 16) <= len(progress._read(port)) < (1 << 16) + (1 << 14)
        thread.join(PATIENCE_S)


# What a cluster file says ---------------------------------------------------------------------------------------------


# The image -----------------------------------------------------------------------------------------------------------
