"""The operator's own code on its way: to the master's store, into a job, to each host's; whole or not there."""

import dataclasses
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from stat import filemode
from typing import Any

import pytest

from cluster.code.deliver import deliver
from cluster.code.job_code import OwnCode, put_code, read_code
from cluster.code.onhost import store as onhost_store
from cluster.code.snapshot import take
from cluster.code.working_copy import NotBrought, Wanted, provide
from cluster.errors import ConfigError
from cluster.hostset import fold
from cluster.inventory import ROOT, Cluster
from cluster.jobs.client.client import JobListing
from cluster.jobs.record import JobStatus, JobView
from cluster.jobs.state import JobState
from cluster.setup import project
from cluster.ssh.fanout import Executor
from lab import lab as labs
from lab.record import Lab
from tests.cluster.jobs_here import a_job
from tests.cluster.repositories import git, written
from tests.conftest import PATIENCE_S, Inv, wait_for
from tests.processes import begun

OWN = "/root/.cache/dlami-cluster/code"


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A repository with a program, a link, and a folder in which the operator stands."""
    folder = tmp_path / "code"
    folder.mkdir()
    git(folder, "init", "-q")
    written(folder, {"work/train.sh": "#!/bin/sh\ncat ../lib/text; pwd\n", "lib/text": "one\n", "odd 'name\n": "x"})
    (folder / "lib/link").symlink_to("text")
    (folder / "work/train.sh").chmod(0o755)
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


@pytest.fixture
def store(cluster: Cluster, reach: Executor) -> Iterator[str]:
    """Where each host keeps code, empty."""
    clean = f"rm -rf {OWN}/*"
    reach.run(cluster.hosts, clean).check()
    yield OWN
    reach.run(cluster.hosts, clean).check()


def said(reach: Executor, cluster: Cluster, command: str) -> str:
    """What the master says."""
    return reach.run([cluster.master], command).check()[cluster.master].text


@pytest.mark.promise("code")
def test_it_arrives_whole_and_is_reused(reach: Executor, cluster: Cluster, code: Path, store: Any) -> None:
    """What is there is not sent again; a change is; nobody else may read it, nothing unfinished stays."""
    first = deliver(reach, cluster, take(code))
    again = deliver(reach, cluster, take(code))
    (code / "lib/text").write_text("two\n")
    changed = deliver(reach, cluster, take(code))

    assert [True, False, True] == [one.sent_bytes > 0 for one in (first, again, changed)]
    assert first.archive == again.archive != changed.archive
    assert sorted(
        [f"{first.content}.tar", f"{first.digest}.json", f"{changed.content}.tar", f"{changed.digest}.json"]
    ) == (said(reach, cluster, f"ls -A {store}").split())
    assert "drwx------" in said(reach, cluster, f"stat -c %A {store}")
    assert "one\n" == said(reach, cluster, f"tar -xOf {first.archive} lib/text")


def test_a_job_has_it_as_it_was_sent(
    lab: Lab, reach: Executor, cluster: Cluster, code: Path, store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes, what they come from and how they differ, in the job's folder; whatever becomes of the delivery."""
    of_master = lab.host_folder(lab.hosts[0]) / f"upper{OWN}"
    monkeypatch.setattr(onhost_store, "FOLDER", str(of_master))
    (code / "lib/text").write_text("two\n")
    (code / "mine").write_text("")
    snapshot = take(code / "work")
    deliver(reach, cluster, snapshot)
    job = tmp_path / "job"
    job.mkdir()
    put_code(job, snapshot.digest)
    reach.run([cluster.master], f"rm -r {store}/*").check()

    about = json.loads((job / "code.json").read_text())
    assert (snapshot.digest, snapshot.revision, "work", ["mine"]) == (
        about["digest"], about["revision"], about["below"], about["untracked"],
    )  # fmt: skip
    assert about["revision"].endswith("+changes")
    assert OwnCode(revision=snapshot.revision, content=snapshot.content) == read_code(job)
    assert "+two" in (job / "code.diff").read_text()
    assert "text" == str((job / "code/lib/link").readlink())
    assert ["two\n", "x"] == [(job / "code/lib/link").read_text(), (job / "code/odd 'name\n").read_text()]
    assert os.access(job / "code/work/train.sh", os.X_OK)
    assert ["drwx------", "-rw-------"] == [filemode((job / name).stat().st_mode) for name in ("code", "code.diff")]
    assert take(code).files == take(job / "code", ["."]).files


def test_an_interrupted_delivery_leaves_nothing_half(
    lab: Lab, cluster: Cluster, reach: Executor, store: Any, code: Path
) -> None:
    """Killed in the middle, on a slow line: no archive there, no part of one, and the next delivery is whole."""
    kept = lab.host_folder(lab.hosts[0]) / f"upper{OWN}"
    (code / "big").write_bytes(os.urandom(8_000_000))
    git(code, "add", ".")
    labs.slow(lab, lab.hosts[0], mbit=16, delay_ms=None)
    script = (
        "import sys; from pathlib import Path; from cluster.inventory import load_cluster; "
        "from cluster.ssh.fanout import Executor; from cluster.code.deliver import deliver; "
        "from cluster.code.snapshot import take; cluster = load_cluster(sys.argv[1])\n"
        "with Executor(cluster) as reach: deliver(reach, cluster, take(Path(sys.argv[2])))"
    )
    words = [sys.executable, "-c", script, f"lab:{lab.name}", str(code)]
    with begun(words, cwd=ROOT, stderr=subprocess.PIPE) as delivering:
        wait_for(lambda: any(part.stat().st_size for part in kept.glob("*.part")), 60, "it has begun")
        delivering.send_signal(signal.SIGKILL)
    wait_for(lambda: not list(kept.iterdir()), 60, "nothing is left of it")
    labs.heal(lab, lab.hosts)

    done = deliver(reach, cluster, take(code))
    assert hashlib.sha256((code / "big").read_bytes()).hexdigest() in (
        said(reach, cluster, f"tar -xOf {done.archive} big | sha256sum")
    )


def test_code_is_broadcast_to_hosts_that_share_no_folder(
    lab: Lab, cluster: Cluster, reach: Executor, store: Any, code: Path
) -> None:
    """The same bytes on all; sent once, and again where it is lost or damaged; a job's working copy stays its own."""
    told = deliver(reach, cluster, take(code))
    look = "cd /root/jobs/{} && find . -printf '%p|%y|%m|%l\\n' | sort && find . -type f -print0 | sort -z | xargs -0 md5sum"

    def provided(job: str) -> tuple[int, Any]:
        wanted = Wanted(archive=told.archive, content=told.content, folder=f"/root/jobs/{job}")
        number = provide(reach, cluster, cluster.hosts, wanted)
        return number, reach.run(cluster.hosts, look.format(job)).check().groups()

    number, (first,) = provided("a")
    again, _ = provided("b")
    reach.run([cluster.hosts[1]], f"echo kept >/root/jobs/a/lib/text; truncate -s 700 {OWN}/{told.content}.tar").check()
    reach.run([cluster.hosts[2]], f"rm -rf {OWN}/*").check()
    mended, (third,) = provided("c")
    provide(reach, cluster, cluster.hosts, Wanted(archive=told.archive, content=told.content, folder="/root/jobs/a"))

    assert (3, 0, 2) == (number, again, mended), "how many hosts were sent it, the master not"
    assert cluster.hosts == first[0] == third[0]
    assert first[1].stdout == third[1].stdout
    assert "|l|777|text" in first[1].text and "|f|755|" in first[1].text
    assert "kept\n" == reach.run([cluster.hosts[1]], "cat /root/jobs/a/lib/text").check()[cluster.hosts[1]].text
    files = reach.run(cluster.hosts, f"cd {OWN} && stat -c '%A %n' *.tar; ls /root/jobs; rm -r /root/jobs").check()
    assert {f"-r-------- {told.content}.tar\na\nb\nc\n"} == {r.text for r in files.values()}


def test_a_host_that_cannot_have_it_is_named(
    lab: Lab, cluster: Cluster, reach: Executor, store: Any, code: Path
) -> None:
    """With its reason; the others have it all the same."""
    told = deliver(reach, cluster, take(code))
    reach.run([cluster.hosts[3]], "touch /root/jobs").check()
    wanted = Wanted(archive=told.archive, content=told.content, folder="/root/jobs/a")

    with pytest.raises(NotBrought, match=rf"the code is not on {cluster.hosts[3].address}: .*jobs") as error:
        provide(reach, cluster, cluster.hosts, wanted)

    assert [cluster.hosts[3].address] == list(error.value.why)
    reach.run(cluster.hosts[:3], "cat /root/jobs/a/lib/text").check()
    reach.run(cluster.hosts, "rm -r /root/jobs").check()


@pytest.mark.promise("sync")
def test_the_project_on_the_nodes_is_what_it_is_here(
    cluster: Cluster, reach: Executor, store: Any, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what differs is changed, what was brought and is gone here goes, the rest of the folder is left alone."""
    monkeypatch.setattr("cluster.project_files.ROOT", code)
    git(code, "rm", "-q", "odd 'name\n")
    there = dataclasses.replace(cluster, project="/root/.cache/dlami-cluster/code/synced/project")

    def synced(**options: Any) -> tuple[Any, ...]:
        done = project.sync(there, None, **{"dry_run": False, "force": False, **options})
        return project.lines(done), {h.text for h in reach.run(cluster.hosts, look).check().values()}

    look = f"cd {there.project} 2>/dev/null && find . -type f -o -type l | sort && cat lib/text; true"
    assert ({""}) == synced(dry_run=True)[1]
    first, files = synced()
    assert f"{fold(h.address for h in cluster.hosts)} (4)  3 files: " in first
    own = f"cd {there.project} && touch cluster.toml lib/own && echo ./cluster.toml >>.synced"
    reach.run(cluster.hosts, own).check()
    (code / "lib/text").write_text("two\n")
    git(code, "rm", "-q", "work/train.sh")
    foreseen, before = synced(dry_run=True)
    reach.run([cluster.hosts[2]], f"mkdir {there.project}/.git").check()
    second, after = synced()

    assert {"./.synced\n./lib/link\n./lib/text\n./work/train.sh\none\n"} == files
    assert "(4)  1 file, 1 removed: lib/text, work/train.sh" in foreseen
    assert "./work/train.sh" in "".join(before) and "two" not in "".join(before)
    assert f"{cluster.hosts[2].address} (1)  FAILED: {there.project} is a git checkout of its own" in second
    assert {before.pop(), "./.synced\n./cluster.toml\n./lib/link\n./lib/own\n./lib/text\ntwo\n"} == after
    assert "nothing changed, all there" in synced()[0]
    (code / "lib/text").write_text("three\n")
    running = a_job("", "supervised")
    view = JobView(job=running, status=JobStatus(state=JobState.RUNNING), folder="", owner="", age_s=0)
    monkeypatch.setattr(
        project.JobsClient, "list", lambda jobs, **_: JobListing(jobs=(view,), damaged=(), damaged_ids=(), left_out={})
    )
    with pytest.raises(ConfigError, match=r"supervised is supervised by the code that is there: wait, or .*--force"):
        synced()
    assert "three" not in "".join(synced(dry_run=True)[1]), "nothing was changed"
    records = [one.record() for one in project.sync(there, "0,2", dry_run=False, force=True)]
    assert [(0, False, 1), (2, True, 0)] == [(r["rank"], r["error"] is not None, r["changed"]) for r in records]


@pytest.fixture
def dlami(lab: Lab, code: Path, tmp_path: Path) -> Inv:
    """`dlami` as an operator types it in a folder of the code."""
    environment = {**os.environ, "CLUSTER": f"lab:{lab.name}", "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path)}

    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        typed = [sys.executable, "-m", "dlami.program", *words]
        return subprocess.run(
            typed, cwd=code / "work", capture_output=True, text=True, timeout=PATIENCE_S, env=environment
        )

    return run


WRITES = """\
#!/bin/sh
cat ../lib/text; pwd
echo "$DLAMI_ATTEMPT" >>"out-$NODE_RANK"; cat "out-$NODE_RANK"
[ "$DLAMI_ATTEMPT" = 1 ] || exit 0
[ "$NODE_RANK" = 1 ] || exec sleep 600
until [ -e out-0 ]; do sleep 0.1; done
kill -9 $$
"""


@pytest.mark.parametrize("number", [0, 2000])
def test_ranks_run_in_one_place_whatever_the_size(
    lab: Lab, cluster: Cluster, reach: Executor, store: Any, code: Path, dlami: Inv, number: int
) -> None:
    """It is said where; what a program writes there its next attempt finds, though the stores are lost and the
    operator's files are others by then; the second job of the same code sends nothing.
    """
    written(code, {"work/writes.sh": WRITES, **{f"many/{n}.py": str(n) for n in range(number)}})
    (code / "work/writes.sh").chmod(0o755)
    (code / ".env").write_text("PASSWORD=x")
    git(code, "add", ".")
    options = ("--unchecked", "--hosts", "0-1", "--per", "node")
    refused = dlami("train.run", *options, "--", "./writes.sh")
    first = dlami("train.run", *options, "--queue", "--exclude", ".env", "--", "./writes.sh")
    (job,) = set(re.findall(r"\d+-\d+-writes-\w+", first.stdout + first.stderr))
    second = dlami("train.run", *options, "--no-heal", "--exclude", ".env", "--", "./train.sh")
    reach.run(cluster.hosts, f"rm -rf {OWN}/*").check()
    (code / "lib/text").write_text("two\n")
    resumed = dlami("jobs.resume", job, "--yes", "--unchecked", "--no-heal")

    assert (2, "") == (refused.returncode, refused.stdout)
    assert "  .env: an environment file" in refused.stderr
    place = f"/shared/jobs/{job}/code/work"
    assert 0 == first.returncode, first.stdout + first.stderr
    assert f"working directory: {place}\n" in first.stderr
    assert (4, 4) == tuple(first.stdout.count(line) for line in ("one\n", f"{place}\n")), first.stdout
    assert re.search(r"^code: [\d,]+ bytes sent$", first.stderr, re.MULTILINE)
    assert "code: nothing sent, the master has this code\n" in second.stderr
    assert 0 == resumed.returncode, resumed.stdout + resumed.stderr
    assert (2, 0) == (resumed.stdout.count("one\n"), resumed.stdout.count("two\n")), resumed.stdout
    assert ["1\n2\n3\n"] * 2 == [(lab.shared / f"jobs/{job}/code/work/out-{n}").read_text() for n in (0, 1)]
