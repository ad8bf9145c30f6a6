"""`inv fetch`: files from the master or from every host to this machine, whole, verified, gone on with."""

import json
import os
from pathlib import Path

import pytest

from cluster.broadcast.fetch import PARTIAL, Fetched, _why, lines
from cluster.errors import ConfigError
from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.ssh.fanout import Executor
from tests.cluster.jobs_here import HERE
from tests.conftest import Inv

FILL = """
rm -rf /root/fetched && mkdir -p '/root/fetched/a b/deep' && cd /root/fetched || exit 1
hostname >name; head -c 3000000 /dev/urandom >'a b/deep/large'; printf 'x\\ny' >"quote'\\"s"; ln -s name link; touch .hidden
"""
SUMS = "cd {} && find . -type f | LC_ALL=C sort | xargs -d '\\n' sha256sum"


def here(cluster: Cluster, folder: Path) -> str:
    """Names and checksums of what is in a folder of this machine."""
    local = Cluster(name="here", hosts=(HERE,), folder=folder, shared=str(folder), project="/p")
    with Executor(local) as reach:
        return reach.run([HERE], SUMS.format(f"'{folder}'")).check()[HERE].text


@pytest.fixture
def filled(cluster: Cluster, reach: Executor) -> list[str]:
    """Names and checksums of the folder /root/fetched, which is another one on every host."""
    reach.run(cluster.hosts, FILL).check()
    return [r.text for r in reach.run(cluster.hosts, SUMS.format("/root/fetched")).check().values()]


def test_a_folder_of_the_master_comes_whole_and_is_compared_by_checksum(
    inv: Inv, cluster: Cluster, filled: list[str], tmp_path: Path
) -> None:
    """Names with blanks and quotes, links and hidden files; what was damaged here meanwhile comes again."""
    target = tmp_path / "runs/one"
    planned = inv("fetch", "/root/fetched", str(target), "--dry-run", "--json")
    assert (0, 4) == (planned.returncode, json.loads(planned.stdout)["files"]) and not target.exists(), planned.stderr
    done = inv("fetch", "/root/fetched/", str(target))
    assert 0 == done.returncode, done.stderr
    assert "brought 4 files, 3.0 MB" in done.stdout
    assert filled[0] == here(cluster, target) and "name" == str((target / "link").readlink())

    large = target / "a b/deep/large"
    at = large.stat()
    large.write_bytes(b"\0" * at.st_size)

    os.utime(large, ns=(at.st_atime_ns, at.st_mtime_ns))
    again = inv("fetch", "/root/fetched", str(target))
    assert "brought 1 file, 3.0 MB; 3 files here already" in again.stdout
    assert filled[0] == here(cluster, target)


def test_an_interrupted_fetch_goes_on(
    inv: Inv, cluster: Cluster, filled: list[str], tmp_path: Path, reach: Executor
) -> None:
    """From what came: the part of a file that is under another name until it is whole."""
    whole = reach.run([cluster.master], "cat '/root/fetched/a b/deep/large'").check()[cluster.master].stdout
    part = tmp_path / "got/a b/deep" / PARTIAL / "large"
    part.parent.mkdir(parents=True)
    part.write_bytes(whole[:2_000_000])
    done = inv("fetch", "/root/fetched", str(tmp_path / "got"), "--json")

    assert 0 == done.returncode, done.stderr
    assert filled[0] == here(cluster, tmp_path / "got") and not part.exists()


def test_every_host_has_a_folder_of_its_own(inv: Inv, cluster: Cluster, filled: list[str], tmp_path: Path) -> None:
    """One that has no such file is named, and the others' come."""
    done = inv("fetch", "--hosts", "0-2", "/root/fetched/name", str(tmp_path))
    assert 0 == done.returncode, done.stderr
    assert [f"{cluster.name}-{n}\n" for n in range(3)] == [
        (tmp_path / h.address / "name").read_text() for h in cluster.hosts[:3]
    ]

    inv("run", "--hosts", "1", "--", "rm /root/fetched/name")
    some = inv("fetch", "--hosts", "@all", "/root/fetched/name", str(tmp_path / "more"), "--json")
    records = {one["rank"]: one for one in map(json.loads, some.stdout.splitlines())}
    assert 1 == some.returncode
    assert [None, "/root/fetched/name: there is no such file or folder", None, None] == [
        records[n]["error"] for n in range(4)
    ]
    assert (tmp_path / "more" / cluster.hosts[3].address / "name").exists()


def test_a_file_goes_by_the_name_that_it_is_to_have_here(inv: Inv, filled: list[str], tmp_path: Path) -> None:
    """A slash at the end is a folder that it goes into; a link brings what it leads to; a folder is not replaced."""
    for dst in ("new", "in/", "in/deeper/"):
        assert 0 == inv("fetch", "/root/fetched/link", f"{tmp_path}/{dst}").returncode
    assert (tmp_path / "new").is_file() and (tmp_path / "in/link").is_file() and (tmp_path / "in/deeper/link").is_file()
    refused = inv("fetch", "/root/fetched/name", f"{tmp_path}/in")
    assert 1 == refused.returncode and "is a folder here" in refused.stdout
    kept = inv("fetch", "/root/fetched", f"{tmp_path}/new")
    assert 1 == kept.returncode and "is here and no folder" in kept.stdout and (tmp_path / "new").is_file()


@pytest.mark.parametrize("src", ["", "/", "name", "./name", "~", "/a\nb"])
def test_a_source_is_a_whole_path(src: str) -> None:
    """There is no folder that one stands in there."""
    from cluster.broadcast.fetch import _checked

    with pytest.raises(ConfigError, match="SRC "):
        _checked(src)


def test_the_lines_say_what_is_missing() -> None:
    """And what to do."""
    one = Fetched(host=Host(rank=0, address="10.0.0.1", slots=1), target="/d", files=1, bytes=2_000_000, all_files=3)
    assert "10.0.0.1  brought 1 file, 2.0 MB; 2 files here already: /d" == lines([one], dry_run=False)
    assert "would bring" in lines([one], dry_run=True)
    assert "the same command goes on" in _why(30, ["rsync error: timeout\n"])
    assert "install it there" in _why(127, ["sh: rsync: not found\n"])


def test_a_cluster_on_this_machine_needs_no_ssh(tmp_path: Path) -> None:
    """The file is copied."""
    from cluster.broadcast.fetch import fetch

    (tmp_path / "src").write_text("x")
    local = Cluster(name="here", hosts=(HERE,), folder=tmp_path, shared=str(tmp_path), project="/p")
    (done,) = fetch(local, str(tmp_path / "src"), f"{tmp_path}/to/", [HERE], folder_each=False)

    assert ("", 1, "x") == (done.error, done.files, (tmp_path / "to/src").read_text())
