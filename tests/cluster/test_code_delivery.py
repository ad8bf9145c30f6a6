"""The operator's own code on its way: to the master, into a job, to each host's own disk; whole or not there."""

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

from cluster.copying.onhost.unpack import Unpacking
from cluster.errors import ConfigError
from cluster.hostset import fold
from cluster.inventory import ROOT, Cluster
from cluster.jobs.client import Listing
from cluster.jobs.record import JobView, Status
from cluster.jobs.state import JobState
from cluster.lab import lab as labs
from cluster.lab.record import Lab
from cluster.ssh.fanout import Reach
from cluster.sync import project
from cluster.sync.deliver import deliver
from cluster.sync.job_code import OwnCode, put_code, read_code
from cluster.sync.onhost import own_disk
from cluster.sync.onhost.content import digest_of
from cluster.sync.own_disk import NotBrought, bring, keep
from cluster.sync.snapshot import LARGE_BYTES, take
from tests.cluster.jobs_here import a_job
from tests.cluster.test_code_choice import git, written
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
def store(cluster: Cluster, reach: Reach) -> Iterator[str]:
    """Where the master keeps code, empty; the hosts' own disks have none either."""
    clean = f"rm -rf {cluster.shared}/code {OWN}/*"
    reach.run(cluster.hosts, clean).check()
    yield f"{cluster.shared}/code/root"
    reach.run(cluster.hosts, clean).check()


def said(reach: Reach, cluster: Cluster, command: str) -> str:
    """What the master says."""
    return reach.run([cluster.master], command).check()[cluster.master].text


@pytest.mark.promise("code")
def test_it_arrives_whole_and_is_reused(reach: Reach, cluster: Cluster, code: Path, store: Any) -> None:
    """What is there is not sent again; a change is; nobody else may read it, nothing unfinished stays."""
    first = deliver(reach, cluster, take(code))
    again = deliver(reach, cluster, take(code))
    (code / "lib/text").write_text("two\n")
    changed = deliver(reach, cluster, take(code))

    assert [False, True, False] == [one.was_there for one in (first, again, changed)]
    assert first.archive == again.archive != changed.archive
    assert sorted(
        [f"{first.content}.tar", f"{first.digest}.json", f"{changed.content}.tar", f"{changed.digest}.json"]
    ) == (said(reach, cluster, f"ls -A {store}").split())
    assert "drwx------" in said(reach, cluster, f"stat -c %A {store}")
    assert "one\n" == said(reach, cluster, f"tar -xOf {first.archive} lib/text")


def test_a_job_has_it_as_it_was_sent(
    lab: Lab, reach: Reach, cluster: Cluster, code: Path, store: Any, tmp_path: Path
) -> None:
    """The bytes, what they come from and how they differ, in the job's folder; whatever becomes of the delivery."""
    (code / "lib/text").write_text("two\n")
    (code / "mine").write_text("")
    snapshot = take(code / "work")
    deliver(reach, cluster, snapshot)
    job = tmp_path / "job"
    job.mkdir()
    put_code(job, lab.shared, snapshot.digest)
    reach.run([cluster.master], f"rm -r {store}").check()

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
    lab: Lab, cluster: Cluster, reach: Reach, store: Any, code: Path
) -> None:
    """Killed in the middle, on a slow line: no archive there, no part of one, and the next delivery is whole."""
    kept = lab.shared / "code/root"
    (code / "big").write_bytes(os.urandom(8_000_000))
    git(code, "add", ".")
    labs.slow(lab, lab.hosts[0], mbit=16, delay_ms=None)
    script = (
        "import sys; from pathlib import Path; from cluster.inventory import load_cluster; "
        "from cluster.ssh.fanout import Reach; from cluster.sync.deliver import deliver; "
        "from cluster.sync.snapshot import take; cluster = load_cluster(sys.argv[1])\n"
        "with Reach(cluster) as reach: deliver(reach, cluster, take(Path(sys.argv[2])))"
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


def test_large_code_is_on_every_hosts_own_disk(
    lab: Lab, cluster: Cluster, reach: Reach, store: Any, code: Path
) -> None:
    """The same bytes on all; sent only where they are missing; a job's own copy stays its own, the next gets the bytes."""
    archive = deliver(reach, cluster, take(code))
    look = f"cd {OWN}/jobs/{{}} && find . -printf '%p|%y|%m|%l\\n' | sort && find . -type f -print0 | sort -z | xargs -0 md5sum"

    def brought(job: str) -> Any:
        bring(reach, cluster, cluster.hosts, archive.archive, archive.content, job)
        return reach.run(cluster.hosts, look.format(job)).check().groups()

    (first,) = brought("a")
    spoil = f"echo spoilt >>{OWN}/{archive.content}.tar; echo kept >{OWN}/jobs/a/lib/text"
    reach.run([cluster.hosts[1]], spoil).check()
    reach.run([cluster.hosts[2]], f"rm -rf {OWN}/*").check()
    (second,) = brought("b")

    assert cluster.hosts == first[0] == second[0]
    assert first[1].stdout == second[1].stdout
    assert "|l|777|text" in first[1].text and "|f|755|" in first[1].text
    bring(reach, cluster, cluster.hosts, archive.archive, archive.content, "a")
    assert "kept\n" == reach.run([cluster.hosts[1]], f"cat {OWN}/jobs/a/lib/text").check()[cluster.hosts[1]].text


@pytest.mark.parametrize("begins", [0, 70_001])
def test_an_archive_becomes_a_folder_while_it_arrives(tmp_path: Path, code: Path, begins: int) -> None:
    """In parts of any size, the first of which may have come earlier; what is damaged leaves nothing but a sentence."""
    (code / "lib/large").write_bytes(os.urandom(200_000))
    whole, arriving = tmp_path / "whole.tar", tmp_path / "arriving.tar"
    subprocess.run(["tar", "-c", "-f", whole, "-C", code, "work", "lib"], check=True)
    data = whole.read_bytes()
    for name, sent in (("made", data), ("damaged", data[:100_000])):
        arriving.write_bytes(data[:begins])
        unpacking = Unpacking(str(tmp_path / name))
        try:
            for at in range(begins, len(sent), 4097):
                with arriving.open("r+b") as file:
                    file.seek(at)
                    file.write(sent[at : at + 4097])
                unpacking.feed(at, sent[at : at + 4097], str(arriving))
            assert not (tmp_path / name).exists()
            unpacking.finish(str(arriving))
        except OSError as e:
            assert name == "damaged", e
        finally:
            unpacking.abandon()

    for path in ("work/train.sh", "lib/text", "lib/large"):
        assert (code / path).read_bytes() == (tmp_path / "made" / path).read_bytes()
    assert "text" == str((tmp_path / "made/lib/link").readlink())
    assert [] == list(tmp_path.glob("*.part"))


def test_a_copy_in_which_nothing_was_written_is_the_next_job_s(
    lab: Lab, cluster: Cluster, reach: Reach, store: Any, code: Path
) -> None:
    """The very same files by another name, without what every run leaves; one that has changed stays its job's."""
    sent = deliver(reach, cluster, take(code))
    files = f"cd {OWN}/jobs/{{}} && find . -type f -printf '%p %i\\n' | sort"
    bring(reach, cluster, cluster.hosts, sent.archive, sent.content, "a")
    before = reach.run(cluster.hosts, files.format("a")).check()
    run = "mkdir __pycache__ && touch __pycache__/x.pyc && ln -s /shared/jobs/a/hosts hosts"
    reach.run(cluster.hosts, f"cd {OWN}/jobs/a/work && {run}").check()
    for host, change in ((1, "touch new"), (2, "echo two >lib/text"), (3, "mkdir results")):
        reach.run([cluster.hosts[host]], f"cd {OWN}/jobs/a && {change}").check()
    keep(reach, cluster.hosts, sent.content, "a")
    bring(reach, cluster, cluster.hosts, sent.archive, sent.content, "b")
    after = reach.run(cluster.hosts, files.format("b")).check()

    assert before[cluster.hosts[0]].text == after[cluster.hosts[0]].text, "nothing was made"
    names = {re.sub(r" \d+$", "", r.text, flags=re.MULTILINE) for r in after.values()}
    assert 1 == len(names), names
    left = reach.run(cluster.hosts, f"ls -d {OWN}/jobs/a {OWN}/kept/* 2>/dev/null; true").check()
    assert ["", *[f"{OWN}/jobs/a\n"] * 3] == [left[h].text for h in cluster.hosts]
    again = reach.run(cluster.hosts, f"cat {OWN}/jobs/b/lib/text; ls {OWN}/jobs/b/work").check()
    assert {"one\ntrain.sh\n"} == {r.text for r in again.values()}
    archives = reach.run(cluster.hosts, f"ls {OWN}/*.tar 2>/dev/null; true").check()
    assert [True, False, False, False] == [bool(archives[h].text) for h in cluster.hosts], "only to pass it on"


@pytest.fixture
def brought(tmp_path: Path) -> tuple[str, Path]:
    """A job's copy of code on this host's own disk; the name of its content, and where it is."""
    place = Path(own_disk.copy_in(str(tmp_path), "job"))
    (place / "package").mkdir(parents=True)
    (place / "package/program.py").write_text("pass")
    return digest_of([own_disk._row(str(place / "package/program.py"), "package/program.py")]), place


@pytest.mark.parametrize(
    ("left", "is_kept"),
    [
        ("", True),
        ("package/__pycache__/program.pyc", True),
        ("package/more.py", False),
        ("package/program.py", False),
        ("empty/", False),
        ("unread/more.py", False),
    ],
)
def test_a_copy_is_kept_as_it_was_brought_or_not_at_all(
    brought: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str, is_kept: bool
) -> None:
    """Caches go; a file more, another content, an empty folder and one that cannot be looked into are the job's own."""
    content, place = brought
    file, scandir = place / left, os.scandir
    if left:
        (file if left.endswith("/") else file.parent).mkdir(exist_ok=True)
        if not left.endswith("/"):
            file.write_text("made by the job")

    def refusing(path: Any) -> Any:
        if str(path).endswith("unread"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)

    assert is_kept is own_disk._keep(str(tmp_path), content, "job")
    kept = Path(own_disk.kept_in(str(tmp_path), content))
    assert (is_kept, not is_kept) == (kept.exists(), place.exists())
    if is_kept:
        assert ["package", "package/program.py"] == sorted(str(p.relative_to(kept)) for p in kept.rglob("*"))


def test_a_host_that_cannot_have_it_is_named(lab: Lab, cluster: Cluster, reach: Reach, store: Any, code: Path) -> None:
    """With its reason; the others have it all the same."""
    done = deliver(reach, cluster, take(code))
    reach.run([cluster.hosts[3]], f"mkdir -p {OWN} && touch {OWN}/jobs").check()

    with pytest.raises(NotBrought, match=rf"the code is not on {cluster.hosts[3].address}: .*jobs") as error:
        bring(reach, cluster, cluster.hosts, done.archive, done.content, "a")

    assert [cluster.hosts[3].address] == list(error.value.why)
    reach.run(cluster.hosts[:3], f"cat {OWN}/jobs/a/lib/text").check()


@pytest.mark.promise("sync")
def test_the_project_on_the_nodes_is_what_it_is_here(
    cluster: Cluster, reach: Reach, store: Any, code: Path, monkeypatch: pytest.MonkeyPatch
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
    view = JobView(job=running, status=Status(state=JobState.RUNNING), folder="", owner="", age_s=0)
    monkeypatch.setattr(
        project.Jobs, "list", lambda jobs: Listing(jobs=(view,), damaged=(), damaged_ids=(), left_out={})
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


def test_every_attempt_of_a_program_has_the_same_bytes(
    cluster: Cluster, reach: Reach, store: Any, code: Path, dlami: Inv
) -> None:
    """Large code is run where it was stood in, from each host's own disk; later changes, and a disk that is new, change nothing."""
    (code / "big").write_bytes(os.urandom(LARGE_BYTES))
    (code / ".env").write_text("PASSWORD=x")
    git(code, "add", ".")
    options = ("--unchecked", "--hosts", "1-2", "--per", "node", "--no-heal")
    refused = dlami("train.run", *options, "--", "./train.sh")
    first = dlami("train.run", *options, "--exclude", ".env", "--", "./train.sh")
    (code / "lib/text").write_text("two\n")
    reach.run([cluster.hosts[2]], f"rm -rf {OWN}/*").check()
    again = dlami("jobs.resume", "last", "--yes", "--unchecked", "--no-heal")
    removed = dlami("jobs.remove", "last", "--yes")

    assert (2, "") == (refused.returncode, refused.stdout)
    assert "  .env: an environment file" in refused.stderr
    assert 0 == removed.returncode, removed.stderr
    assert {""} == {r.text for r in reach.run(cluster.hosts[1:3], f"ls {OWN}/jobs").check().values()}
    for done in (first, again):
        assert 0 == done.returncode, done.stdout + done.stderr
        assert (2, 0) == (done.stdout.count("one\n"), done.stdout.count("two\n")), done.stdout
        assert 2 == len(re.findall(rf"{OWN}/jobs/[\w-]+-train-\w+/work\n", done.stdout)), done.stdout


DIES = """\
#!/bin/sh
said=$DLAMI_JOB_DIR/said-$DLAMI_ATTEMPT-$NODE_RANK
{ cat ../lib/text; pwd; } >"$said.new"
mv "$said.new" "$said"
[ "$DLAMI_ATTEMPT" = 1 ] || exit 0
[ "$NODE_RANK" = 1 ] || exec sleep 600
until [ -e "$DLAMI_JOB_DIR/said-1-0" ]; do sleep 0.1; done
rm -rf ~/.cache/dlami-cluster/code/*
kill -9 $$
"""


def test_large_code_is_there_after_the_queue_and_for_a_healed_attempt(
    lab: Lab, store: Any, code: Path, dlami: Inv
) -> None:
    """The supervisor brings it: when the job's turn comes, and again to a host whose disk has lost it."""
    written(code, {"work/dies.sh": DIES})
    (code / "work/dies.sh").chmod(0o755)
    (code / "big").write_bytes(os.urandom(LARGE_BYTES))
    git(code, "add", ".")
    done = dlami("train.run", "--queue", "--unchecked", "--hosts", "1-2", "--per", "node", "--", "./dies.sh")

    assert 0 == done.returncode, done.stdout + done.stderr
    assert "attempt 2" in done.stdout + done.stderr
    (job,) = set(re.findall(r"\d+-\d+-dies-\w+", done.stdout + done.stderr))
    said = {path.name: path.read_text() for path in (lab.shared / "jobs" / job).glob("said-*")}
    there = f"one\n{OWN}/jobs/{job}/work\n"
    assert {f"said-{attempt}-{node}": there for attempt in (1, 2) for node in (0, 1)} == said
