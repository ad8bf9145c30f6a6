"""Two users without sudo on a cluster of root's: eve attacks bob and the operator on the master of a lab."""

import dataclasses
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cluster.errors import ClusterError, ConfigError
from cluster.inventory import ROOT, Cluster, SshSettings
from cluster.jobs.client.client import JobsClient
from cluster.jobs.process import ProcessId
from cluster.jobs.record import Job, JobStatus
from cluster.jobs.state import JobState
from cluster.ssh import connections
from cluster.ssh.fanout import Executor
from cluster.ssh.options import way_to
from lab import lab as labs
from lab.record import Lab
from tests.cluster.flat_jobs import changed
from tests.cluster.jobs_here import a_job
from tests.cluster.other_accounts import ACCOUNT, opened_to_all
from tests.conftest import PATIENCE_S, wait_for

EVE, BOB = "dlami-eve", "dlami-bob"
# What eve's own Python does with what eve may: a job of any name, its files as they are given.
FORGE = """\
import json, os, sys
for path, text in json.load(sys.stdin).items():
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)
"""
HOLD = """\
import fcntl, glob, os, time
held = []
for path in glob.glob("/shared/jobs/.lock*"):
    try:
        held.append(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        pass
time.sleep(600)
"""


@dataclasses.dataclass(frozen=True)
class Seat:
    """A user's account on the master, and the jobs as that user has them."""

    reach: Executor
    cluster: Cluster

    @property
    def access(self) -> SshSettings:
        return self.cluster.access

    @property
    def jobs(self) -> JobsClient:
        return JobsClient(self.reach, self.cluster)

    def sh(self, script: str, stdin: bytes = b"") -> str:
        """What a script of this user's says on the master."""
        return self.reach.run([self.cluster.master], script, stdin=stdin).check()[self.cluster.master].text

    def forge(self, files: dict[str, str]) -> None:
        self.sh(f"python3 -c {shlex.quote(FORGE)}", json.dumps(files).encode())

    def submit(self, job: Job) -> None:
        self.jobs.submit(job)


@pytest.fixture
def seats(cluster: Cluster, reach: Executor) -> Iterator[dict[str, Seat]]:
    """Eve's, bob's and root's; nothing of the two is left."""
    people = {
        name: dataclasses.replace(cluster, access=dataclasses.replace(cluster.access, user=name)) for name in (EVE, BOB)
    }
    with opened_to_all(reach, cluster):
        try:
            reach.run([cluster.master], " && ".join(ACCOUNT.format(name) for name in people)).check()
            with ExitStack() as stack:
                made = {name: Seat(stack.enter_context(Executor(seat)), seat) for name, seat in people.items()}
                yield {**made, "root": Seat(reach, cluster)}
        finally:
            connections.disconnect([way_to(cluster.master, seat.access) for seat in people.values()])
            with Executor(cluster) as anew:  # the master may have been away
                left = "find /shared/jobs -mindepth 1 -maxdepth 1 -user {0} -exec rm -rf {{}} +"
                gone = "; ".join(f"pkill -KILL -u {n}; {left.format(n)}; userdel --remove --force {n}" for n in people)
                anew.run([cluster.master], f"{gone}; rm -rf /var/tmp/pwned*")


def forged(job: Job, **status: object) -> dict[str, str]:
    """The files of a job of eve's that runs what eve wants, lost now."""
    folder = f"/shared/jobs/{job.id}"
    gone = ProcessId(host="lab-0", pid=1, started=1)
    left = JobStatus(state=JobState.RUNNING, supervisor=gone, started="2026-11-22T10:00:00+00:00")
    record = json.dumps(dataclasses.asdict(changed(job, sequence=9999, heal=True)))
    return {
        f"{folder}/job.json": record,
        f"{folder}/public.json": record,
        f"{folder}/state.json": json.dumps({**dataclasses.asdict(left), **status}),
        f"{folder}/logs/attempt-1/console.log": "",
    }


def evil() -> Job:
    """Whose words would be run by whoever resumes or heals it."""
    pwn = ("sh", "-c", "id -un >>/var/tmp/pwned-$(id -u)")
    return a_job(
        "true",
        "evil",
        command=pwn,
        mpirun=pwn,
        notify="/shared/jobs/pwn.sh",
        python="/shared/jobs/pwn.sh",
        prefix=("/shared/jobs/pwn.sh",),
    )


PWN = {"/shared/jobs/pwn.sh": "#!/bin/sh\nid -un >>/var/tmp/pwned-$(id -u)\n"}


def test_eve_gets_nothing_done_as_another(lab: Lab, seats: dict[str, Seat]) -> None:
    """Not by a record, a link, a pipe or a lock: bob's and root's jobs are listed, submitted, stopped; hers are named."""
    eve, bob, root = seats[EVE], seats[BOB], seats["root"]
    eve.forge({**PWN, **forged(evil())})
    eve.sh("chmod 755 /shared/jobs/pwn.sh; cd /shared/jobs; ln -s . all; ln -s /etc/cron.d/x .lock; ln -s evil other")
    eve.sh("mkdir /shared/jobs/pipe && mkfifo /shared/jobs/pipe/state.json")
    eve.sh(f"setsid -f python3 -c {shlex.quote(HOLD)} >/dev/null 2>&1 </dev/null")

    bob.submit(a_job("sleep 4321", "bobs", name="here"))
    eve.sh(f"setsid -f python3 -c {shlex.quote(HOLD)} >/dev/null 2>&1 </dev/null")  # his lock, too, were it to be had
    for seat in (bob, root):
        listing = seat.jobs.list()
        assert {("evil", EVE), ("bobs", BOB)} <= {(j.id, j.owner) for j in listing.jobs}
        assert "pipe" in listing.damaged_ids
        assert any("/shared/jobs/pipe/" in d and f"passed over; {EVE}" in d for d in listing.damaged)
    assert "bobs" == bob.jobs.show("last").id
    for what in ("resume", "remove", "stop"):
        with pytest.raises(ConfigError, match=f"evil is {EVE}'s job: only {EVE} can {what} it"):
            bob.jobs.to_change("evil", what, yes=False)
    with pytest.raises(ClusterError, match=f"evil is {EVE}'s job: only {EVE} can stop it"):
        bob.jobs.stop("evil")
    with pytest.raises(ClusterError, match="runuser"):
        bob.jobs.to_change("evil", "stop", yes=True)[0].stop("evil")
    with pytest.raises(ClusterError, match=f"bobs is {BOB}'s job"):
        eve.jobs.stop("bobs")
    assert "" == root.sh("ls /etc/cron.d/x /var/tmp/pwned* 2>/dev/null; true")

    as_bob, found = root.jobs.to_change("bobs", "stop", yes=True)
    assert (JobState.STOPPED, BOB) == ((stopped := as_bob.stop(found.id)).state, stopped.owner)
    owners = root.sh("find /shared/jobs/bobs -printf '%u\\n' | sort -u").split()
    assert [BOB] == owners


def test_root_s_boot_runs_nothing_of_eve_s(lab: Lab, seats: dict[str, Seat], cluster: Cluster) -> None:
    """Her own lost job may go on as her, and bob's does as him; a link in the jobs' folder makes nobody else's of it."""
    eve, bob = seats[EVE], seats[BOB]
    eve.forge({**PWN, **forged(evil())})
    eve.forge({path.replace("/evil/", "/"): text for path, text in forged(evil()).items()})  # found by way of `all`
    eve.sh("chmod 755 /shared/jobs/pwn.sh; cd /shared/jobs; ln -s . all; ln -s evil again; ln -s / top")
    bob.forge(forged(dataclasses.replace(evil(), id="bobs")))
    labs.crash(lab, lab.hosts[0])
    labs.heal(lab, lab.hosts[:1])
    with Executor(cluster) as anew:

        def said(script: str) -> set[str]:
            return set(anew.run([cluster.master], f"{script}; true").check()[cluster.master].text.split())

        (eves,), (bobs,) = said(f"id -u {EVE}"), said(f"id -u {BOB}")
        looked = "ls /var/tmp | grep pwned-"
        wait_for(lambda: f"pwned-{bobs}" in said(looked), 120, "jobs have been looked at")
        wait_for(lambda: not said("pgrep -f '[h]eal-lost.sh'"), 120, "all of them")
        assert said(looked) <= {f"pwned-{eves}", f"pwned-{bobs}"}
        assert {EVE, BOB} >= said("cat /var/tmp/pwned-*")


# Names that others look for: eve makes them first.
SQUAT = """\
u=$(id -u {bob}); cd /tmp; mkdir -m 700 ompi.$(hostname).$u dlami-$u; cd /var/tmp; mkdir dlami-tunnels-$u dlami-jobs-$u
cd /shared; mkdir environments/$u notebooks/$u; ln -s / matrices/x; mkdir health/x
now=$(date +%s); for n in 1 2; do echo '{{"time": '$now', "host": "{host}", "what": "lost", "job": "j'$n'"}}' >host-failures/$n.json; done
ls -d /tmp/ompi* notebooks/$u"""
# Jobs of one user, as many as there are numbers; none of them runs.
MANY = """\
import os, sys
texts = sys.stdin.read().split("\\0")
for n in range(int(sys.argv[1])):
    folder = f"/shared/jobs/m{n:05d}"
    os.makedirs(folder)
    for name, text in zip(("job.json", "public.json", "state.json"), texts):
        open(f"{folder}/{name}", "w").write(text.replace("IDENTITY", f"m{n:05d}"))
"""


def typed(seat: Seat, tmp_path: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """What `dlami` does as this user types it."""
    folder = tmp_path / seat.access.user
    if not folder.exists():
        shutil.copytree(seat.cluster.folder, folder, ignore=shutil.ignore_patterns("shared", "nodes"))
        settings = (folder / "cluster.toml").read_text()
        (folder / "cluster.toml").write_text(settings.replace('user = "root"', f'user = "{seat.access.user}"'))
    environment = {**os.environ, "CLUSTER": str(folder), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "dlami.program", *words]
    return subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=PATIENCE_S, env=environment)


def test_no_name_or_number_of_eve_s_stops_bob(lab: Lab, seats: dict[str, Seat], tmp_path: Path) -> None:
    """His training starts though his folders' names are taken, his host has failures of hers, and she has 3,000 jobs."""
    eve, bob = seats[EVE], seats[BOB]
    lab.shared.chmod(0o1777)
    try:
        assert 2 == len(eve.sh(SQUAT.format(bob=BOB, host=bob.cluster.master.address)).split())
        texts = [json.dumps(dataclasses.asdict(dataclasses.replace(evil(), id="IDENTITY")))] * 2
        texts.append(json.dumps(dataclasses.asdict(JobStatus(state=JobState.FAILED))))
        eve.sh(f"python3 -c {shlex.quote(MANY)} 3000", "\0".join(texts).encode())
        seats["root"].sh(f"install -m 600 -o {BOB} ~/.ssh/known_hosts ~{BOB}/.ssh/")
        bob.sh("cd ~/.ssh; ssh-keygen -q -t ed25519 -N '' -f id_ed25519; cat id_ed25519.pub >>authorized_keys")
        done = typed(bob, tmp_path, "train.run", "--no-code", "--unchecked", "--hosts", "0", "--", "id", "-un")
        assert (0, True) == (done.returncode, BOB in done.stdout), done.stdout + done.stderr
        listed = json.loads(typed(bob, tmp_path, "jobs.list", "--all", "--json").stdout)
        owners = [one["owner"] for one in listed]
        assert 1 == owners.count(BOB) and EVE in owners
        assert "" == bob.sh(f"find /tmp -maxdepth 1 -user {BOB} -name 'dlami-mpi.*'")
    finally:
        seats["root"].sh(f"find /shared /tmp /var/tmp -xdev -user {EVE} -mindepth 1 -delete")
        lab.shared.chmod(0o755)
