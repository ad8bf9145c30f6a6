"""Hosts whose `.bashrc` prints for every shell, to both streams, another thing each time: nothing that answers minds."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import ConfigError
from cluster.health import baseline
from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.jobs.client.client import JobsClient
from cluster.jobs.state import JobState
from cluster.kill.reboot import reboot
from cluster.launch.facts import survey
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from cluster.ssh.noise_filter import complaint, marked, output_between_marks, trouble
from cluster.ssh.program import ask, program
from cluster.ssh.result import Result
from cluster.ssh.terminate import end_processes
from cluster.stage.stage import is_shared
from lab.record import Lab
from tests.cluster.lab_jobs import a_job, started
from tests.conftest import Inv, wait_for

TALK = r"""printf 'welcome %s\n-- 3 lines\n{"runs": [], "steps": 7}\nno newline {"result"' "$(date +%N)"
printf 'motd of %s: all is lost\nno newline' "$(date +%N)" >&2
"""
HERE = Host(rank=0, address="localhost", slots=1)


@pytest.fixture
def talking(lab: Lab, reach: Executor, cluster: Cluster) -> Iterator[None]:
    """While it lasts the shells of all hosts talk first."""
    kept = "cp /root/.bashrc /root/.bashrc.kept 2>/dev/null; cat >/root/.bashrc"
    reach.run(cluster.hosts, kept, stdin=TALK.encode()).check()
    try:
        said_first = reach.run(cluster.hosts, "true").check()
        assert all("welcome" in r.text and b"motd" in r.stderr for r in said_first.values()), "the shells do talk"
        yield
    finally:
        reach.run(cluster.hosts, "rm /root/.bashrc; mv /root/.bashrc.kept /root/.bashrc 2>/dev/null || true")


def test_questions_get_their_answers(talking: None, lab: Lab, reach: Executor, cluster: Cluster) -> None:
    """Programs, scripts between marks, and what the master says of its jobs."""
    results, facts = survey(reach, cluster, cluster.hosts)
    looks, looked = ask(reach, cluster.hosts, program("cluster.stage.onhost.look"), lambda host: [f"/x{host.rank}"])
    assert set(cluster.hosts) == set(results.check()) == set(looks.check()), "a host that failed is told with its words"
    assert set(cluster.hosts) == set(facts) == set(looked), [
        (r.host.address, r.stdout, r.stderr) for r in results.values()
    ]
    assert () == JobsClient(reach, cluster).list().damaged
    with pytest.raises(ConfigError, match=r"^no job 'nothing' in /shared/jobs"):
        JobsClient(reach, cluster).show("nothing")
    assert [True, False] == [is_shared(reach, cluster.hosts, f) for f in ("/shared/new/folder", "/root/new/folder")]

    kind = baseline.ClusterKind(instance="no-ec2", ami="no-ami", ranks=4, hosts=4, versions=())
    assert baseline.add(reach, cluster, kind, [], {"all-reduce": 5.0})
    assert [{"all-reduce": 5.0}] == baseline.read(reach, cluster, kind)

    assert {} == end_processes(reach, cluster.hosts, "no-such-run").left
    left = "DLAMI_JOB=talks setsid sleep 4321 >/dev/null 2>&1 </dev/null & p=$!"
    stop = 'until [ "$(cat /proc/$p/comm)" = sleep ]; do sleep 0.05; done; kill -STOP $p'
    reach.run(cluster.hosts[:2], f"{left}; {stop}", limits=Limits(total_s=60)).check()
    addresses = [h.address for h in cluster.hosts]
    swept = (  # as the master does it
        "from cluster.hosts import Host; from cluster.jobs.cleanup import stopped_processes, sweep;"
        f"hosts = [Host(rank=n, address=a, slots=1) for n, a in enumerate({addresses})];"
        "print(sorted({s.partition(':')[0] for s in stopped_processes(hosts, 'talks')}), sweep(hosts, 'talks').left)"
    )
    asked = marked(f"cd {cluster.project} && {cluster.python} -c {shlex.quote(swept)}")
    assert [f"{sorted({'localhost', *addresses[:2]})} ()\n"] == [
        output_between_marks(r) for r in reach.run([cluster.master], asked).values()
    ]


def test_a_reboot_is_seen_when_it_is_one(talking: None, reach: Executor, cluster: Cluster) -> None:
    """What the shell says differs each time, which is no new boot; and a host that does not go down is said to stay."""
    assert {cluster.hosts[1]: "not back within 3 s: it has not gone down"} == reboot(
        _WithoutTheEnd(reach),
        cluster.hosts[1:2],
        3.0,
    )


class _WithoutTheEnd:
    """Connections over which nobody is told to go down, and which a busy machine may answer late."""

    def __init__(self, reach: Executor) -> None:
        self._reach = reach

    def run(self, hosts: Any, command: str, **given: Any) -> Any:
        return self._reach.run(hosts, "true" if "reboot" in command else command, **{**given, "limits": Limits()})


def test_tasks_answer_as_ever(
    talking: None, lab: Lab, jobs: Any, reach: Executor, cluster: Cluster, inv: Inv, tmp_path: Path
) -> None:
    """A job starts, is listed and ends; health finds nothing, kill nothing; files are copied."""
    job = a_job(reach, cluster, cluster.hosts[:2])
    started(jobs, reach, job)
    listed = json.loads(inv("jobs.list", "--json").stdout)
    assert [(job.id, "running")] == [(j["id"], j["state"]) for j in listed if j["id"] == job.id]
    refused = inv("jobs.resume", job.id)
    assert 2 == refused.returncode and f"{job.id} is running: there is nothing to resume" in refused.stderr
    assert (JobState.STOPPED, ()) == ((stopped := jobs.stop(job.id)).state, stopped.status.left)
    killed = inv("kill", "--yes")
    assert (0, True) == (killed.returncode, "nothing of a training on" in killed.stdout), killed.stdout + killed.stderr
    well = inv("health")
    assert "unknown" not in well.stdout, well.stdout
    (tmp_path / "data").write_text("whole")
    copied = inv("copy", tmp_path / "data", "/root/talks")
    assert 0 == copied.returncode, copied.stdout + copied.stderr
    assert {"whole"} == {output_between_marks(r) for r in reach.run(cluster.hosts, marked("cat /root/talks")).values()}
    wait_for(lambda: not jobs.show(job.id).state.is_going, 10, "it is over")


@pytest.mark.parametrize(
    ("stdout", "stderr", "code", "expected"),
    [
        (b"x\x1edlami-begin\nyes\x1edlami-end\n", b"", 0, ("yes", "")),
        (b"x\x1edlami-begin\nyes\x1edlami-en", b"", 0, (None, "its answer did not arrive whole")),
        (b"yes\x1edlami-end\n", b"", 0, (None, "its answer did not arrive whole")),
        (b"", b"", 0, (None, "its answer did not arrive whole")),
        (b"\x1edlami-begin\n\x1edlami-end\n", b"motd\x1edlami-begin\ncat: x\n", 1, ("", "exited 1   | cat: x")),
        (b"\x1edlami-begin\nno\n\x1edlami-end\n", b"motd\x1edlami-begin\n", 3, ("no\n", "exited 3   | no")),
    ],
)
def test_what_is_between_the_marks_counts(stdout: bytes, stderr: bytes, code: int, expected: Any) -> None:
    """An answer without its end is none."""
    result = Result(host=HERE, exit_code=code, stdout=stdout, stderr=stderr, seconds=0)

    assert expected == (output_between_marks(result), trouble(result))
    assert b"motd" not in complaint(result).encode()


def test_a_master_s_own_ssh_settings_are_no_trouble(
    lab: Lab, jobs: Any, reach: Executor, cluster: Cluster, inv: Inv
) -> None:
    """Those of a person who logs in from there, for every host: a terminal, a command, no session, no input."""
    settings = "Host *\n  RequestTTY force\n  RemoteCommand bash -l\n  SessionType none\n  StdinNull yes\n"
    keep = "touch /root/.ssh/config; cp /root/.ssh/config /run/config.kept; { cat; cat /run/config.kept; } >/root/.ssh/config"
    reach.run([cluster.master], keep, stdin=settings.encode()).check()
    try:
        job = a_job(reach, cluster, cluster.hosts[:2])
        started(jobs, reach, job)
        assert JobState.STOPPED == jobs.stop(job.id).state
        well = inv("health")
        assert "ssh" not in well.stdout, well.stdout
    finally:
        back = "[ -s /run/config.kept ] && cp /run/config.kept /root/.ssh/config || rm /root/.ssh/config"
        reach.run([cluster.master], back).check()
