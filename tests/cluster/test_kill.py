"""What is found of trainings, what is ended of it, and what is said about it."""

import json
import shutil
from typing import Any

import pytest
from invoke import Context, Exit

from cluster.inventory import Cluster
from cluster.kill import reboot
from cluster.kill.kill import KnownJobs, describe, describe_end, end_leftovers, find_leftovers
from cluster.ssh.fanout import Executor
from cluster.ssh.program import ask, program
from cluster.ssh.tagged_processes import end_script
from dlami.tasks import hosts as tasks
from lab.record import Lab
from tests.conftest import Inv

NOTHING_KNOWN = KnownJobs(going=(), over=())


def over(*jobs: Any) -> Any:
    return KnownJobs(going=(), over=jobs)


def until(holds: str) -> str:
    """Shell text that waits until this shell text succeeds, and fails where it never does."""
    return f"n=0; until {holds}; do [ $n -lt 600 ] || exit 1; n=$((n + 1)); sleep 0.05; done"


def started(script: Any, last: Any, by_inv: str = "") -> Any:
    """Shell text that starts the script in the background, of no inv, and waits for the last of its sleepers."""
    begun = until(f"pgrep -f '^sleep {last}' >/dev/null")
    return f"env -u DLAMI_RUN {by_inv} setsid sh -c '{script}' >/dev/null 2>&1 </dev/null & {begun}"


def kill(
    reach: Executor,
    cluster: Cluster,
    hosts: Any,
    jobs: Any = NOTHING_KNOWN,
    again: Any = None,
    all_mine: bool = False,
    grace_s: int = 1,
) -> Any:
    """Look, agree, end: what was shown, and what came of it."""
    found = find_leftovers(reach, cluster, hosts, jobs, all_mine=all_mine)
    return found, end_leftovers(reach, cluster, found, again or jobs, all_mine=all_mine, grace_s=grace_s)


def running(reach: Executor, hosts: Any, what: Any) -> Any:
    return sum(int(r.text) for r in reach.run(hosts, f"ps -eo args | grep -c '^[s]leep {what}' || true").values())


def test_a_crashed_job_s_processes_go_and_a_running_job_s_stay(cluster: Cluster, reach: Executor) -> None:
    """By the tag in their environment, not by name: an equal command without a tag is left alone."""
    reach.run(
        cluster.hosts,
        "DLAMI_JOB=dead-1 " + started("sleep 4001; true", 4001) + "; "
        "DLAMI_JOB=alive-1 " + started("sleep 4002; true", 4002) + "; " + started("sleep 4003; true", 4003),
    ).check()
    shown, ended = kill(reach, cluster, cluster.hosts, KnownJobs(going=("alive-1",), over=("dead-1",)))

    assert 8 == shown.num_to_end
    assert "job alive-1, orphan: runs, not touched" in describe(shown).replace("root S ", "")
    told = describe_end(shown, ended)
    assert f"({len(cluster.hosts)}): zero left of those to be ended" in told
    assert "; 8 that were listed not touched" in told
    assert (0, 4, 4) == tuple(running(reach, cluster.hosts, n) for n in (4001, 4002, 4003))
    assert "(4): zero processes left" in describe_end(*kill(reach, cluster, cluster.hosts, over("alive-1")))
    reach.run(cluster.hosts, "pkill -f '^sleep 4003'").check()


def test_a_job_of_another_cluster_file_is_judged_by_its_own_record(cluster: Cluster, reach: Executor, lab: Lab) -> None:
    """Our master knows nothing of it: while its record says that it runs, nothing of it is touched by anything."""
    host, folder = cluster.hosts[1], lab.shared / "b/jobs/other-1"
    folder.mkdir(parents=True)
    tag = "DLAMI_JOB=other-1 DLAMI_JOB_FOLDER=/shared/b/jobs/other-1 "
    for state in ("starting", "running", "stopping", "of-the-future"):
        (folder / "state.json").write_text(json.dumps({"state": state}))
        reach.run([host], tag + started("sleep 4011; true", 4011)).check()
        shown, _ = kill(reach, cluster, [host], all_mine=True)
        assert (0, 1) == (shown.num_to_end, running(reach, [host], 4011)), state
        reach.run([host], "pkill -f '^sleep 4011'").check()

    for damaged, gone in ((True, False), (False, True)):  # half a record decides nothing; a removed job is over
        (folder / "state.json").write_text('{"sta')
        reach.run([host], tag + started("sleep 4012; true", 4012)).check()
        if gone:
            shutil.rmtree(folder)
        shown, ended = kill(reach, cluster, [host])
        assert (4 if gone else 0) == shown.num_to_end, damaged
    assert 0 == ended.num_left + running(reach, [host], 4012)


def test_only_what_was_shown_is_ended(cluster: Cluster, reach: Executor) -> None:
    """A job that began while the question waited, and the next attempt of one that was shown, stay."""
    host = cluster.hosts[1]
    reach.run([host], "DLAMI_JOB=dead-5 " + started("sleep 4013; true", 4013)).check()
    found = find_leftovers(reach, cluster, [host], over("dead-5"))
    reach.run([host], "DLAMI_JOB=new-1 " + started("sleep 4014; true", 4014)).check()
    ended = end_leftovers(reach, cluster, found, over("dead-5", "new-1"), grace_s=1)
    assert 0 == ended.num_left
    assert (0, 1) == (running(reach, [host], 4013), running(reach, [host], 4014))

    found = find_leftovers(reach, cluster, [host], over("new-1"))
    now = KnownJobs(going=("new-1",), over=())  # it was resumed
    end_leftovers(reach, cluster, found, now, grace_s=1)
    assert 1 == running(reach, [host], 4014)
    kill(reach, cluster, [host], over("new-1"))


def test_what_forks_all_the_time_goes_with_what_was_shown(cluster: Cluster, reach: Executor) -> None:
    """Each child has a number that was never shown."""
    host = cluster.hosts[1]
    loop = "while :; do sleep 4015 & sleep 0.01; done"
    reach.run([host], "DLAMI_JOB=dead-6 " + started(loop, 4015)).check()
    _, ended = kill(reach, cluster, [host], over("dead-6"))

    assert (0, 0) == (ended.num_left, running(reach, [host], 4015))


@pytest.mark.promise("kill")
def test_inv_kill_asks_first(lab: Lab, inv: Inv, cluster: Cluster, reach: Executor) -> None:
    """Without a terminal and without --yes nothing is ended; --json records what was found."""
    tag = "DLAMI_JOB=dead-4 DLAMI_JOB_FOLDER=/shared/jobs/dead-4 "
    (lab.shared / "jobs").mkdir(exist_ok=True)  # and no such job in it: it was removed
    reach.run(cluster.hosts, tag + started("sleep 4010; true", 4010)).check()
    asked = inv("kill")

    assert "end 8 processes, remove 0 segments? There is no terminal to ask on" in asked.stderr
    assert 2 == asked.returncode
    assert 4 == running(reach, cluster.hosts, 4010)
    told = inv("kill", "--json")
    assert 4 == len(json.loads(told.stdout))
    told = inv("kill", "--yes", "--json", "--hosts", "1")
    assert ([2, []], 0) == ([len((one := json.loads(told.stdout)[0])["processes"]), one["left"]], told.returncode)
    done = inv("kill", "--yes")
    assert 0 == done.returncode
    assert "zero processes left" in done.stdout
    assert 0 == running(reach, cluster.hosts, 4010)
    assert "nothing of a training on" in inv("kill").stdout


@pytest.mark.promise("reboot")
def test_reboot_waits_until_they_answer(cluster: Cluster, reach: Executor) -> None:
    """The host goes down by its own command and another boot answers."""
    victims, back = cluster.hosts[1:3], []
    missing = reboot.reboot(reach, victims, 200, lambda host, _s: back.append(host))

    assert {} == missing
    assert set(victims) == set(back)


def test_reboot_looks_again_after_the_answer(
    lab: Lab, cluster: Cluster, reach: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training that begins on one of its slots while the question waits is not rebooted away."""
    host = cluster.hosts[1]
    monkeypatch.setenv("CLUSTER", f"lab:{lab.name}")

    def says_yes_late(_what: str) -> bool:
        claim = program("cluster.jobs.onhost.claim", {host.address: ["new-2", 1, "", 0.0, 1, 2]}, "dlami-job")
        ask(reach, [host], claim, lambda h: [h.address], environment={"DLAMI_JOB": "new-2"})[0].check()
        return True

    monkeypatch.setattr(tasks, "agreed", says_yes_late)
    try:
        with pytest.raises(
            Exit, match=rf"new-2 \(user root\) runs on {host.address}, as is seen there: a reboot would"
        ):
            tasks.reboot(Context(), hosts="1")
    finally:
        reach.run([host], end_script("DLAMI_JOB", "new-2", 1)).check()
