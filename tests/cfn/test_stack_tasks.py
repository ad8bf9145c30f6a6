"""What the stack's tasks show, ask and do, between the command line and AWS."""

import io
import json
import re
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from designs import design

from cfn import changes, create, failover, hostfile, in_stack, plan, running, stop, update
from cfn.changes import ChangeSet, ResourceChange
from cfn.plan import ClusterPlan
from cfn.setup_script import main as print_setup
from cfn.stack import Stack
from cluster import terminal
from cluster.clusterfile import text
from cluster.clusterfile.model import Access, ClusterFile, Guard, Nodes
from cluster.errors import ClusterError, ConfigError, NothingToDo
from cluster.hosts import Host
from cluster.jobs.state import JobState
from cluster.setup.script import Script
from dlami.tasks import cost_actions, stack_actions, stop_actions
from tests.cfn.answers import account, member, nodes, refused, resources, stack_of

DEMO = ClusterFile(
    name="demo",
    nodes=Nodes(workers=2),
    access=Access(ssh_from="203.0.113.7/32", key_pair="mine"),
    guard=Guard(idle_minutes=0),
)
MADE = Stack(id="id-of-demo", name="demo", status="CREATE_COMPLETE", outputs={"InstanceType": "g5.12xlarge"})
HERE = [member(0), member(1), member(2)]
NEW_NODES = ResourceChange(
    action="Modify", resource="Worker", kind="AWS::EC2::LaunchTemplate", replacement="False", properties=("Data",)
)


class Desk:
    """A folder with a cluster file, an account, and what was said there."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, said: pytest.CaptureFixture[str]) -> None:
        self.path, self._patch, self._said = folder / "cluster.toml", patch, said
        self.write(DEMO)
        self.asks()

    def write(self, file: ClusterFile, **more: Any) -> None:
        """The cluster file, with more fields by their names, `__` for the dot."""
        fields = {name.replace("__", "."): value for name, value in more.items()}
        self.path.write_text(text.render({**in_stack.values(file), **fields}))

    def asks(self, **said: Any) -> None:
        """From now on AWS answers so; the stack and its three hosts are there unless told otherwise."""
        aws = account(**{**stack_of(DEMO), **nodes(*HERE), **said})
        for module in (stack_actions, stop_actions, cost_actions):
            self._patch.setattr(module, "Aws", lambda region: replace(aws, region=region))

    def types(self, *lines: str) -> None:
        """Somebody at a terminal who answers this; nobody without."""
        stdin = io.StringIO("".join(f"{line}\n" for line in lines))
        self._patch.setattr(stdin, "isatty", lambda: bool(lines), raising=False)
        self._patch.setattr(terminal.sys, "stdin", stdin)

    def set(self, module: Any, name: str, value: Any) -> None:
        self._patch.setattr(module, name, value)

    def told(self) -> tuple[str, str]:
        """What went to stdout, and what to stderr."""
        return tuple(self._said.readouterr())  # type: ignore[return-value]

    def json(self) -> Any:
        return json.loads(self.told()[0])


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    monkeypatch.chdir(tmp_path)
    made = Desk(tmp_path, monkeypatch, capsys)
    made.types()
    return made


def a_plan(**more: Any) -> ClusterPlan:
    return ClusterPlan(**{"design": design(workers=2), "body": "{}", "stack": None, "usd_per_hour": 1.0, **more})


@pytest.mark.parametrize("stack", [None, replace(MADE, status="UPDATE_IN_PROGRESS")])
def test_a_plan_of_what_is_not_there_has_no_changes(desk: Desk, stack: Stack | None) -> None:
    """Nor has that of a stack at work; warnings go beside it."""
    made = a_plan(stack=stack)

    stack_actions.answer_plan(account(), made, False)

    out, err = desk.told()
    assert out == f"{made}\n"
    assert err.splitlines() == made.warnings


@pytest.mark.parametrize("change", [(NEW_NODES,), ()])
def test_a_plan_of_what_is_there_shows_what_an_update_would_change(
    desk: Desk, change: tuple[ResourceChange, ...]
) -> None:
    """The change set is dropped again; in JSON it is a list."""
    proposed = ChangeSet(id="c", stack=MADE, changes=change) if change else None
    dropped: list[str] = []
    desk.set(changes, "difference", lambda aws, made, stack: proposed)
    aws = account(delete_change_set=lambda **given: dropped.append(given["ChangeSetName"]))
    made = a_plan(stack=MADE)

    stack_actions.answer_plan(aws, made, False)
    shown = desk.told()[0].splitlines()
    stack_actions.answer_plan(aws, made, True)

    assert shown[-1 - len(change) :] == (["changes   ", str(NEW_NODES)] if change else ["changes   none"])
    assert desk.json()["changes"] == (proposed.as_json() if proposed else [])
    assert dropped == (["c", "c"] if change else [])


def test_a_new_cluster_is_planned_asked_for_and_told(desk: Desk) -> None:
    """Without a yes nothing is made; a stack that is there is not asked about."""
    made, asked = [a_plan()], []
    desk.set(plan, "make", lambda aws, file: made[0])
    desk.set(failover, "create_and_tell", lambda *given, **more: asked.append((given[1], more)) or HERE)
    path = str(desk.path)

    with pytest.raises(ConfigError, match=re.escape(f"This starts 3 instances ({made[0].cost}).")):
        stack_actions.make_stack(path, False, False, False, "", False)
    assert asked == []
    assert desk.told()[1] == "\n".join([str(made[0]), *made[0].warnings]) + "\n"
    stack_actions.make_stack(path, False, True, False, "", False)
    assert desk.told()[0] == ""
    stack_actions.make_stack(path, False, True, False, "", True)
    assert desk.json()["hosts"] == 3
    assert asked == []
    stack_actions.make_stack(path, True, False, True, "6h", False)
    assert (
        desk.told()[0]
        == "demo is ready: 3 hosts, master 198.51.100.7\nnext: inv hosts.write, then inv sync, inv setup (the nodes have no project), then inv ssh\n"
    )
    assert asked.pop() == (made[0], {"keep_failed": True, "checkout": None, "wait_s": 21600})
    made[0] = a_plan(stack=MADE)
    stack_actions.make_stack(path, False, False, False, "", True)
    said = desk.json()
    assert said["outputs"]["Slots"] == "8"
    assert [h["instance_id"] for h in said["hosts"]] == ["i-0", "i-1", "i-2"]


def updated(desk: Desk, *, ends: list[Any] | None = None, at_zero: bool = False) -> tuple[ChangeSet, list[str]]:
    """An update that is ready; what became of it."""
    proposed = ChangeSet(id="c", stack=MADE, changes=(NEW_NODES,), cost="3.00 USD per hour")
    done: list[str] = []
    desk.set(update, "prepare", lambda aws, file, ami, source: proposed)
    desk.set(update, "ended_by", lambda aws, proposed, file: ends or [])
    desk.set(update, "execute", lambda *given, is_at_zero: done.append(f"executed, at zero: {is_at_zero}") or HERE)
    most = 0 if at_zero else 9
    desk.asks(**nodes(*HERE, most=most), delete_change_set=lambda **_: done.append("dropped"))
    return proposed, done


def test_an_update_is_shown_asked_for_and_done(desk: Desk) -> None:
    """With the hosts that it ends; a no drops it."""
    proposed, done = updated(desk, ends=[member(2)])
    path = str(desk.path)

    with pytest.raises(
        ConfigError,
        match="These changes will be made. What is on the disks of 1 host is lost",  # noqa: RUF043
    ):
        stack_actions.change_stack(path, "", "", False, False, False)
    assert desk.told()[1].splitlines() == [
        str(proposed),
        "cost: 3.00 USD per hour",
        "ends i-2 (10.0.0.2), rank 2",
        "running nodes stay as they are; `inv stack.replace HOST` brings them over one by one",
    ]
    assert done == ["dropped"]
    stack_actions.change_stack(path, "", "", False, True, False)
    assert (desk.told()[0], done) == ("", ["dropped", "dropped"])
    stack_actions.change_stack(path, "", "", False, True, True)
    assert desk.json() == proposed.as_json()
    stack_actions.change_stack(path, "", "", True, False, False)
    assert (
        desk.told()[0]
        == "demo has 3 hosts\nnext: inv hosts.write, then inv sync, inv setup (the nodes have no project)\n"
    )
    assert done[-1] == "executed, at zero: False"
    stack_actions.change_stack(path, "", "", True, False, True)
    assert len(desk.json()) == 3


def test_a_cluster_at_zero_is_updated_and_stays_there(desk: Desk) -> None:
    """Which is said before and after; a change that would start nodes is dropped."""
    _, done = updated(desk, at_zero=True)
    path = str(desk.path)

    stack_actions.change_stack(path, "", "", True, False, False)
    out, err = desk.told()
    assert out == "demo is updated, and still at zero; `inv stack.start` brings it back\n"
    assert err.startswith("demo is at zero: its nodes were ended, by its guard or by hand; this leaves it so\n")
    stack_actions.change_stack(path, "", "", True, False, True)
    assert len(desk.json()) == 3
    assert done == ["executed, at zero: True"] * 2
    sizes = replace(NEW_NODES, properties=("MinSize",))
    desk.set(update, "prepare", lambda *_: ChangeSet(id="c", stack=MADE, changes=(sizes,)))
    with pytest.raises(ConfigError, match="another number of nodes would start some"):
        stack_actions.change_stack(path, "", "", True, False, False)
    assert done[2:] == ["dropped"]


def test_a_host_is_replaced_after_its_own_name_was_typed(desk: Desk) -> None:
    """What is ended is shown; --dry-run ends nothing."""
    replaced: list[str] = []
    desk.set(update, "replace", lambda aws, file, host, show: replaced.append(host) or HERE)
    path = str(desk.path)

    stack_actions.replace_host(path, "1", False, True, False)
    assert desk.told()[0] == "would end i-1 (10.0.0.1), rank 1\n"
    stack_actions.replace_host(path, "1", False, True, True)
    assert desk.json()["instance_id"] == "i-1"
    with pytest.raises(ConfigError, match=re.escape("This ends i-1 (10.0.0.1), rank 1; what is on its disk is lost. ")):
        stack_actions.replace_host(path, "10.0.0.1", False, False, False)
    assert replaced == []
    desk.types("i-1")
    stack_actions.replace_host(path, "10.0.0.1", False, False, False)
    assert replaced == ["10.0.0.1"]
    assert desk.told()[0].endswith(
        "demo has 3 hosts\nnext: inv hosts.write, then inv sync, inv setup (the nodes have no project)\n"
    )
    desk.set(hostfile, "is_this_machine", lambda address: address == "10.0.0.1")
    desk.types()
    with pytest.raises(ConfigError, match="It is this machine: watch from another"):
        stack_actions.replace_host(path, "1", False, False, False)


def test_a_cluster_is_deleted_after_its_name_was_typed(desk: Desk) -> None:
    """--dry-run deletes nothing; what is kept is told."""
    deleted: list[list[str]] = []
    kept = {"SharedFileSystem": "fs-1"}
    desk.set(create, "delete", lambda aws, file, show, retain: deleted.append(retain) or kept)
    desk.asks(**resources([("AWS::EC2::VPC", "vpc-1"), ("AWS::EC2::EIP", "eip-1")]))
    path = str(desk.path)

    stack_actions.remove_stack(path, False, True, "", False)
    assert desk.told()[0] == "would delete 2 resources of demo\n"
    stack_actions.remove_stack(path, False, True, "", True)
    assert desk.json() == ["R0", "R1"]
    with pytest.raises(ConfigError, match="This ends every instance of demo and what is on their disks; EFS is kept"):
        stack_actions.remove_stack(path, False, False, "", False)
    assert deleted == []
    stack_actions.remove_stack(path, True, False, "A,,B", False)
    assert desk.told()[0] == (
        "demo is deleted; kept: SharedFileSystem fs-1\n"
        'to use the files again: storage.efs = "fs-1" in a cluster file; until then EFS bills its size\n'
    )
    assert deleted == [["A", "B"]]
    desk.set(hostfile, "is_this_machine", lambda address: address == "10.0.0.0")
    stack_actions.remove_stack(path, True, False, "", True)
    out, err = desk.told()
    assert json.loads(out) == {"kept": kept}
    assert "this machine is the master and ends with its stack; AWS goes on without it. EFS fs-1 is kept" in err
    desk.asks(describe_stacks=refused("ValidationError", "Stack with id demo does not exist"))
    with pytest.raises(NothingToDo, match="there is no stack demo in us-east-1"):
        stack_actions.remove_stack(path, True, False, "", False)


def test_hosts_are_written_beside_the_cluster_file(desk: Desk, tmp_path: Path) -> None:
    """Shown alone with --dry-run; written once, and then there is nothing to do."""
    desk.set(hostfile, "answers", lambda address, port: False)
    path = str(desk.path)

    stack_actions.write_hosts(path, "", False, True)
    shown = desk.told()[0]
    assert shown.startswith(f"# {tmp_path / 'hosts'}\n10.0.0.0 slots=8\n")
    assert not (tmp_path / "hosts").exists()
    stack_actions.write_hosts(path, "stack", False, False)
    assert desk.told()[0].startswith(f"{tmp_path / 'hosts'}: 3 hosts")
    assert 'gateway = "198.51.100.7"' in desk.path.read_text()
    with pytest.raises(NothingToDo):
        stack_actions.write_hosts(path, "stack", False, False)
    (tmp_path / "hosts").write_text("10.9.9.9 slots=1\n")
    with pytest.raises(ConfigError, match="this was written by hand and would be lost"):
        stack_actions.write_hosts(path, "stack", False, False)
    stack_actions.write_hosts(path, "stack", True, False)
    assert "replaced what was written by hand" in desk.told()[1]


@pytest.mark.parametrize(
    ("access", "lent"),
    [
        ({"key_pair": "mine"}, False),
        ({"public_key": "ssh-ed25519 " + "A" * 68}, False),
        ({}, True),
    ],
)
def test_who_has_no_key_there_is_let_in_by_their_own(
    desk: Desk, tmp_path: Path, access: dict[str, str], lent: bool
) -> None:
    """The public half of ssh.key, for the minute in which ssh begins; a key pair or a public key needs none."""
    own = tmp_path / "mine"
    own.with_name("mine.pub").write_text("ssh-ed25519 AAAA me")
    desk.write(replace(DEMO, access=Access(ssh_from="203.0.113.7/32", **access)), ssh__key=str(own))
    keys: list[str] = []
    desk.asks(send_ssh_public_key=lambda **given: keys.append((given["InstanceId"], given["SSHPublicKey"])))
    run: list[list[str]] = []
    desk.set(hostfile, "needed_programs", lambda mode: ())
    desk.set(stack_actions.os, "execvp", lambda program, words: run.append(words))

    stack_actions.go_to_master(str(desk.path), False)

    assert keys == ([("i-0", "ssh-ed25519 AAAA me")] if lent else [])
    assert (run[0][0], run[0][-1]) == ("ssh", "198.51.100.7")
    assert any(str(own) in word for word in run[0])
    own.with_name("mine.pub").unlink()
    if lent:
        with pytest.raises(ConfigError, match=re.escape(f"access.key_pair is empty and {own}.pub does not exist")):
            stack_actions.go_to_master(str(desk.path), False)


def test_the_way_through_session_manager_is_a_session(desk: Desk, tmp_path: Path) -> None:
    """Of the master's instance in its region; where a program is missing the console is named."""
    file = replace(DEMO, access=Access(mode="ssm"))
    aws = account(**stack_of(file), **nodes(*HERE))
    desk.set(hostfile, "needed_programs", lambda mode: ("surely-no-such-program",))
    with pytest.raises(ConfigError, match="or open a session to i-0 in the console"):
        hostfile.ssh_command(aws, file, tmp_path)
    desk.set(hostfile, "needed_programs", lambda mode: ())

    words = hostfile.ssh_command(aws, file, tmp_path)

    assert words == ["aws", "ssm", "start-session", "--region", "us-east-1", "--target", "i-0"]


def job(name: str, state: JobState = JobState.RUNNING, left_s: float | None = None, **more: Any) -> Any:
    progress = SimpleNamespace(left_s=left_s) if more.pop("has_progress", True) else None
    status = SimpleNamespace(left=(), state=state)
    return SimpleNamespace(id=name, state=state, owner="ann", progress=progress, status=status)


class Jobs:
    """A master that answers of these jobs, and ends them."""

    def __init__(self, *jobs: Any, trouble: dict[str, ClusterError] | None = None) -> None:
        self.jobs, self.trouble, self.stopped = jobs, trouble or {}, []

    @contextmanager
    def opened(self, cluster: Any) -> Any:
        yield self

    def list(self) -> Any:
        if "list" in self.trouble:
            raise self.trouble["list"]
        return SimpleNamespace(jobs=self.jobs)

    def stop(self, name: str) -> Any:
        if name in self.trouble:
            raise self.trouble[name]
        self.stopped.append(name)
        return job(name, JobState.STOPPED)


def with_jobs(desk: Desk, jobs: Jobs) -> list[str]:
    """A cluster whose master has these jobs; what was done to its nodes."""
    done: list[str] = []
    for module in (stop_actions, running, cost_actions):
        desk.set(module, "load_cluster", lambda folder: folder)
        desk.set(module, "opened", jobs.opened)
    desk.set(stop, "stop", lambda aws, file, show: done.append(f"stopped after {jobs.stopped}"))
    return done


def test_jobs_are_saved_and_then_their_nodes_are_ended(desk: Desk) -> None:
    """Who is in the queue or at an end has nothing to save; each that was saved can be resumed."""
    jobs = Jobs(
        job("a"), job("b", JobState.QUEUED), job("c", JobState.SUCCEEDED), job("d"), trouble={"d": NothingToDo("")}
    )
    done = with_jobs(desk, jobs)
    desk.asks(**resources([("AWS::EC2::EIP", "eip-1")]))
    path = str(desk.path)

    stop_actions.stop_stack(path, False, True, False, True)
    said = desk.json()
    assert (said["ends"], said["saves"]) == (["i-0", "i-1", "i-2"], ["a", "d"])
    assert (said["billed"][0]["id"], said["usd_per_day"]) == ("eip-1", 0.12)
    stop_actions.stop_stack(path, False, True, False, False)
    out, err = desk.told()
    assert out.startswith("billed   public address eip-1: 0.12 USD per day\n")
    assert err.splitlines() == [
        "demo: 3 instances end; what is on their own disks (NVMe, root) is lost",
        "  a (ann, running) saves and leaves",
        "  d (ann, running) saves and leaves",
        f"{DEMO.shared}, the network and the master's addresses stay",
    ]
    with pytest.raises(ConfigError, match=re.escape("This ends 3 instances of demo. There is no terminal")):
        stop_actions.stop_stack(path, False, False, False, False)
    assert (done, jobs.stopped) == ([], [])
    desk.told()
    stop_actions.stop_stack(path, True, False, False, False)
    out, err = desk.told()
    assert out.splitlines()[:2] == ["demo is stopped; `inv stack.start` brings it back", "then inv jobs.resume a"]
    assert out.splitlines()[2].startswith("billed ")
    assert err.splitlines()[-3:] == [
        "a: saves and leaves",
        "a: stopped; no process of it is left on any host",
        "d: saves and leaves",
    ]
    assert done == ["stopped after ['a']"]
    stop_actions.stop_stack(path, True, False, False, True)
    said = desk.json()
    assert (said["stopped"], said["saved"]) == (["i-0", "i-1", "i-2"], ["a"])


def test_a_job_that_cannot_be_saved_ends_no_node(desk: Desk) -> None:
    """Nor does a master that cannot be asked; --unsaved asks nobody."""
    path = str(desk.path)
    done = with_jobs(desk, Jobs(job("a"), trouble={"a": ClusterError("it hangs")}))
    with pytest.raises(ClusterError, match="it hangs\nno instance was ended; see to that job, or add --unsaved"):
        stop_actions.stop_stack(path, True, False, False, False)
    done += with_jobs(desk, Jobs(trouble={"list": ClusterError("no answer")}))
    with pytest.raises(ClusterError, match="which jobs run cannot be asked: no answer\nmend that, or add --unsaved"):
        stop_actions.stop_stack(path, True, False, False, False)
    assert done == []

    last = with_jobs(desk, Jobs(job("a"), trouble={"list": ClusterError("no answer")}))
    desk.told()
    stop_actions.stop_stack(path, True, False, True, False)

    assert last == ["stopped after []"]
    assert "  jobs that run are ended as they are, without a last checkpoint\n" in desk.told()[1]


@pytest.mark.parametrize(("most", "is_stopped"), [(0, True), (9, False)])
def test_who_is_stopped_already_is_told_so(desk: Desk, most: int, is_stopped: bool) -> None:
    """Groups without nodes that may have some are brought to zero, and no job is asked for."""
    done = with_jobs(desk, Jobs(trouble={"list": ClusterError("no answer")}))
    desk.asks(**nodes(most=most))

    if is_stopped:
        with pytest.raises(NothingToDo, match="demo is stopped already"):
            stop_actions.stop_stack(str(desk.path), True, False, False, False)
    else:
        stop_actions.stop_stack(str(desk.path), True, False, False, False)
    assert done == ([] if is_stopped else ["stopped after []"])


def test_a_cluster_is_started_and_its_hosts_are_written(desk: Desk, tmp_path: Path) -> None:
    """After a question; new addresses of a file that somebody edited are said and not written."""
    started: list[str] = []
    desk.set(stop, "start", lambda aws, file, show: started.append(file.name) or HERE)
    desk.set(hostfile, "answers", lambda address, port: False)
    path = str(desk.path)

    stop_actions.start_stack(path, False, True, False)
    assert desk.told()[0] == "would start 3 instances of demo\n"
    stop_actions.start_stack(path, False, True, True)
    assert desk.json() == {"starts": 3}
    with pytest.raises(ConfigError, match=re.escape("This starts 3 instances of demo. There is no terminal")):
        stop_actions.start_stack(path, False, False, False)
    assert started == []
    for _ in range(2):  # the second time its hosts are as they were
        stop_actions.start_stack(path, True, False, False)
        assert desk.told() == (
            "demo has 3 hosts again\nnext: inv sync, inv setup (the nodes have no project), then inv jobs.list --all, inv jobs.resume JOB\n",
            "",
        )
    assert "10.0.0.2 slots=8" in (tmp_path / "hosts").read_text()
    (tmp_path / "hosts").write_text("10.9.9.9 slots=1\n")
    with pytest.raises(ConfigError, match=r"(?s)demo runs, and its hosts have new addresses.*--force"):
        stop_actions.start_stack(path, True, False, True)
    assert [h["instance_id"] for h in json.loads(desk.told()[0])] == ["i-0", "i-1", "i-2"]
    assert (tmp_path / "hosts").read_text() == "10.9.9.9 slots=1\n"


def test_a_job_that_runs_is_named_before_its_host_or_its_cluster_ends(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --yes, too; --unsaved ends it as it is, and a cluster that cannot be asked is no obstacle."""
    done: list[str] = []
    desk.set(update, "replace", lambda aws, file, host, show: done.append(host) or HERE)
    desk.set(create, "delete", lambda *_: done.append("deleted") or {})
    desk.asks(**stack_of(DEMO), **nodes(*HERE))
    path = str(desk.path)
    job = SimpleNamespace(
        id="j-1",
        owner="ada",
        state="running",
        job=SimpleNamespace(all_hosts=(Host(rank=1, address="10.0.0.1", slots=8),)),
    )
    desk.set(running, "load_cluster", lambda _: None)
    desk.set(running, "running_jobs", lambda _: (job,))
    with pytest.raises(ConfigError, match=r"j-1 \(ada, running\) runs on 10.0.0.1.*inv jobs.stop j-1"):
        stack_actions.replace_host(path, "1", True, False, False)
    with pytest.raises(ConfigError, match=r"j-1 \(ada, running\) runs, and would be ended .* add --unsaved"):
        stack_actions.remove_stack(path, True, False, "", False)
    assert done == []
    stack_actions.replace_host(path, "2", True, False, False)
    stack_actions.replace_host(path, "1", True, False, False, unsaved=True)

    def unreachable(_: object) -> None:
        raise ClusterError("no way there")

    desk.set(running, "running_jobs", unreachable)
    stack_actions.remove_stack(path, True, False, "", False)
    assert done == ["2", "1", "deleted"] and "which jobs run is not known: no way there" in desk.told()[1]


def test_what_is_left_of_jobs_is_asked_of_those_that_go_on(desk: Desk) -> None:
    """And that tell how far they are; trouble is a sentence of its own."""
    with_jobs(
        desk, Jobs(job("a", left_s=60.0), job("b", JobState.SUCCEEDED, 5.0), job("c", has_progress=False), job("d"))
    )
    assert cost_actions._left_on_hosts("x") == {"a": 60.0, "d": None}
    with_jobs(desk, Jobs(trouble={"list": ClusterError("no answer")}))
    with pytest.raises(ClusterError, match="the master cannot be asked how far its jobs are: no answer"):
        cost_actions._left_on_hosts("x")


@pytest.mark.parametrize(
    ("digest", "code", "out"), [("right", 0, "#!/bin/sh\n"), ("wrong", 1, ""), ("none", 1, ""), ("nowhere", 1, "")]
)
def test_first_boot_is_given_the_script_that_its_node_was_made_for(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, digest: str, code: int, out: str
) -> None:
    """Another one, none, or no stack is a line and a failure."""
    from cfn import setup_script

    script = Script(name="mine.sh", text="#!/bin/sh\n")
    metadata = {} if digest == "none" else {in_stack.SETUP: in_stack.packed(script)}
    said = {**stack_of(DEMO), "get_template": {"TemplateBody": {"Metadata": metadata}}}
    if digest == "nowhere":
        said["describe_stacks"] = refused("ValidationError", "Stack with id demo does not exist")
    monkeypatch.setattr(setup_script, "Aws", lambda region: account(**said))

    assert print_setup("demo", "us-east-1", script.digest if digest == "right" else "0" * 64) == code

    told, trouble = desk.told()
    assert told == out
    if digest == "nowhere":
        assert trouble.startswith("there is no stack demo")
    elif code:
        assert trouble == "stack demo carries another set-up script by now: replace this node\n"
