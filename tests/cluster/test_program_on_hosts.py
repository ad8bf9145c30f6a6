"""A program that knows nothing of us, as a job on real hosts: run, crashed, hung, stopped, resumed, healed, killed."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.inventory import ROOT, Cluster
from cluster.ssh.fanout import Executor
from cluster.ssh.tagged_processes import list_script
from lab.record import SHARED, Lab
from tests.cluster.own_programs import STEPS, Own, begun, console, over, processes, state
from tests.conftest import PATIENCE_S, wait_for


def steps(lab: Lab, job: str) -> int:
    names = (p.name for p in (lab.shared / "jobs" / job / "checkpoints").glob("step-*"))
    return max((int(name.partition("-")[2]) for name in names), default=0)


@pytest.mark.promise("a job")
def test_a_program_is_started_for_each_slot_each_host_or_once(own: Own, lab: Lab, cluster: Cluster) -> None:
    """A shell's line sees what PyTorch, dstack and SkyPilot would say; its output is tagged, and kept by rank."""
    addresses = [h.address for h in cluster.hosts]
    show = 'echo "$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $NODE_RANK/$NNODES $MASTER_ADDR $GLOO_SOCKET_IFNAME $DSTACK_GPUS_NUM $(wc -l <$DLAMI_HOSTFILE)"; exit 0'
    each = own("train.run", "--unchecked", "--np", 3, "--", show)
    node = own("train.run", "--unchecked", "--hosts", "1-2", "--per", "node", "--", show)
    once = own(
        "train.run", "--unchecked", "--per", "once", "--", "bash", "-c", "hostname; echo $NNODES $PET_NPROC_PER_NODE"
    )

    assert (0, 0, 0) == (each.returncode, node.returncode, once.returncode), each.stderr + node.stderr + once.stderr
    said = sorted(re.findall(r"\d+/\d+ .*", each.stdout))
    assert [f"0/3 0/2 0/2 {addresses[0]} eth0 4 2", f"1/3 1/2 0/2 {addresses[0]} eth0 4 2", f"2/3 0/1 1/2 {addresses[0]} eth0 4 2"] == said  # fmt: skip
    assert [f"{n}/2 0/1 {n}/2 {addresses[1]} eth0 4 2" for n in (0, 1)] == sorted(
        re.findall(r"\d+/\d+ .*", node.stdout)
    )
    assert once.stdout.split()[-2:] == ["1", "2"], once.stdout
    again = own("jobs.logs", "last", "--rank", 0)
    assert again.stdout.replace("[1,0]<stdout>:", "").split() == once.stdout.split()


def test_a_rank_that_fails_is_named_with_its_last_word(own: Own, lab: Lab, cluster: Cluster, reach: Executor) -> None:
    """Rank, host and error in one line, nothing tried again, nothing left; a program that is not there is a sentence."""
    fails = "if [ $RANK = 2 ]; then sleep 1; echo 'ValueError: no such label' >&2; exit 5; fi; sleep 600"
    before = set(lab.shared.glob("jobs/*-fails-*"))
    done = own("train.run", "--unchecked", "--hosts", "0-1", "--name", "fails", "--", fails)
    (job,) = (folder.name for folder in set(lab.shared.glob("jobs/*-fails-*")) - before)
    absent = own("train.run", "--unchecked", "--hosts", "1", "--np", 1, "--", "no-such-program", "--lr", "1")

    assert 1 == done.returncode, done.stdout + done.stderr
    assert f"rank 2 on {cluster.hosts[1].address} exited 5: ValueError: no such label" in state(lab, job)["cause"]
    assert "the program's own error" in state(lab, job)["cause"]
    assert [] == processes(reach, cluster, job)
    assert "exited 127: dlami: no-such-program cannot be started on " in absent.stderr
    assert "Traceback" not in done.stderr + absent.stderr


@pytest.mark.promise("healing")
def test_a_program_is_stopped_resumed_and_healed(own: Own, lab: Lab, cluster: Cluster, reach: Executor) -> None:
    """It hears of the stop through a shell, saves, goes on from there, and is begun again when a rank is killed."""
    job = begun(own, "--hosts", "0-1", "--name", "steps", "--", "bash", "-c", "python /shared/own/steps.py; exit $?")
    wait_for(lambda: steps(lab, job) > 3, 120, f"it steps\n{console(lab, job, 1)}")

    def is_listed() -> bool:
        return any(one["id"] == job and one["progress"] for one in json.loads(own("jobs.list", "--json").stdout))

    wait_for(is_listed, 60, "its step is listed")
    refused = own("train.run", "--unchecked", "--hosts", "1-2", "--", "true")
    assert (2, True) == (refused.returncode, f"hosts taken by {job} (running)" in refused.stderr), refused.stderr
    stopped = own("jobs.stop", job)
    assert f"{job}: stopped; no process of it is left on any host\n" == stopped.stdout, stopped.stderr
    assert 4 == console(lab, job, 1).count("saved and left")
    saved = steps(lab, job)

    assert 0 == own("jobs.resume", job, "--detach", "--unchecked").returncode
    wait_for(lambda: steps(lab, job) > saved + 3, 120, f"it goes on\n{console(lab, job, 2)}")
    assert 4 == console(lab, job, 2).count(f"goes on after {saved}\n"), console(lab, job, 2)
    known = lab.shared / "jobs" / job / "attempts.json"
    wait_for(lambda: json.loads(known.read_text())["attempts"][1]["first_step"], 60, "its beats are heard")
    pids = [line.split()[0] for line in reach.run([cluster.hosts[1]], list_script("DLAMI_JOB", job)).check()[cluster.hosts[1]].text.splitlines() if "python /shared" in line and "rank.py" not in line and "bash" not in line]  # fmt: skip
    reach.run([cluster.hosts[1]], f"kill -9 {pids[0]}").check()
    wait_for(lambda: "goes on after" in console(lab, job, 3), 120, f"it is begun again\n{console(lab, job, 2)}")
    (lab.shared / "jobs" / job / "enough").touch()
    status = over(lab, job)

    assert ("succeeded", 3) == (status["state"], status["attempt"]), status
    second = json.loads(own("jobs.show", job, "--json").stdout)["attempts"][1]
    assert ("rank-signal", cluster.hosts[1].address) == (second["what"], second["host"]), second
    assert second["first_step"] > saved, "its beats were heard"


@pytest.mark.promise("a hang")
def test_a_silent_program_is_ended_when_the_operator_says_how_long_that_may_be(
    own: Own, lab: Lab, cluster: Cluster
) -> None:
    """With the line in which it hangs, found below the shell that has started it."""
    (lab.shared / "own/hangs.py").write_text(
        "import time\nprint('begins', flush=True)\ndef wait():\n    time.sleep(600)\nwait()\n"
    )
    job = begun(
        own, "--hosts", "2", "--no-heal", "--hang-after", 5, "--", "bash", "-c", "python /shared/own/hangs.py; exit $?"
    )
    status = over(lab, job)

    assert "failed" == status["state"]
    assert "no progress for" in status["cause"], status
    stacks = (lab.shared / "jobs" / job / "logs/attempt-1/stacks.txt").read_text()
    assert "wait (shared/own/hangs.py:4)" in stacks or "hangs.py:4" in stacks, stacks


def test_without_a_shared_folder_it_is_healed_and_resumed_and_every_rank_s_log_is_shown(
    lab: Lab, cluster: Cluster, reach: Executor, tmp_path: Path
) -> None:
    """Code, record, console and checkpoints are on the leader's own disk; what another host's rank printed is fetched."""
    folder = tmp_path / "unshared"
    shutil.copytree(
        lab.folder, folder, ignore=lambda _, names: {n for n in names if n not in ("hosts", "cluster.toml")}
    )
    settings = (folder / "cluster.toml").read_text().replace(SHARED, f"/root/{folder.name}")
    (folder / "cluster.toml").write_text(f'shared_by = "master"\n{settings}')
    reach.run([cluster.master], f"mkdir /root/{folder.name}").check()
    program = tmp_path / "program"
    program.mkdir()
    (program / "steps.py").write_text(STEPS)
    environment = {**os.environ, "CLUSTER": str(folder), "PYTHONPATH": str(ROOT)}

    def typed(*words: object) -> "subprocess.CompletedProcess[str]":
        line = [sys.executable, "-m", "dlami.program", *map(str, words)]
        return subprocess.run(line, cwd=program, capture_output=True, text=True, timeout=PATIENCE_S, env=environment)

    started = typed(
        "train.run", "--include", ".", "--detach", "--unchecked", "--hosts", "0-1", "--", "python", "steps.py"
    )
    found = re.search(r"^job (\S+): ", started.stderr, re.MULTILINE)
    assert found, started.stdout + started.stderr
    job = found[1]
    there = lab.host_folder(lab.hosts[0]) / f"upper/root/{folder.name}/jobs/{job}"

    def number() -> int:
        return max((int(p.name.partition("-")[2]) for p in (there / "checkpoints").glob("step-*")), default=0)

    def said(rank: int) -> str:
        return typed("jobs.logs", job, "--rank", rank).stdout

    wait_for(lambda: number() > 3, 120, f"it steps\n{started.stderr}")
    assert ("goes on after 0\n", "goes on after 0\n") == (said(0), said(3))
    first = number()
    lines = reach.run([cluster.hosts[1]], list_script("DLAMI_JOB", job)).check()[cluster.hosts[1]].text.splitlines()
    pids = [line.split()[0] for line in lines if "python steps.py" in line and "rank.py" not in line]
    reach.run([cluster.hosts[1]], f"kill -9 {pids[-1]}").check()
    wait_for(lambda: json.loads((there / "state.json").read_text())["attempt"] == 2, 120, "it heals")
    wait_for(lambda: "goes on after" in said(3), 120, "rank 3 goes on")
    after = int(said(3).split()[-1])
    stopped = typed("jobs.stop", job)
    saved = number()
    resumed = typed("jobs.resume", job, "--detach", "--unchecked")
    wait_for(lambda: number() > saved + 3, 120, f"it goes on\n{resumed.stderr}")
    reach.run(cluster.hosts[:2], f"touch /root/{folder.name}/jobs/{job}/enough").check()
    followed = typed("jobs.logs", job, "--rank", 3, "--follow")
    none = typed("jobs.logs", job, "--rank", 4)
    removed = typed("jobs.remove", job, "--yes")

    assert first <= after <= saved
    assert f"{job}: stopped; no process of it is left on any host\n" == stopped.stdout, stopped.stderr
    assert (0, f"goes on after {saved}\n") == (followed.returncode, followed.stdout), followed.stderr
    assert "has 4 ranks, counted from 0: there is no rank 4" in none.stderr
    assert 0 == removed.returncode, removed.stderr
    look = reach.run(cluster.hosts, f"ls -A /root/{folder.name}/jobs 2>/dev/null; true").check()
    assert not any(job in r.text for r in look.values())
