"""From a laptop: the master is the only host it reaches, and the files to copy are its own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.inventory import ROOT, Cluster, load_cluster
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from lab.record import Lab
from tests.conftest import PATIENCE_S, silenced

LOOK = r"find . -type f -printf '%p|%m|%s|%T@\n' -o -printf '%p|%m|%T@\n' | LC_ALL=C sort"


class Seat:
    """The laptop's view of the cluster, and its command line."""

    def __init__(self, folder: Any) -> None:
        self.folder, self.cluster = folder, load_cluster(str(folder))
        self.hosts = self.cluster.hosts

    def inv(self, *words: Any) -> Any:
        return subprocess.run(
            [sys.executable, "-m", "invoke", *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env={**os.environ, "CLUSTER": str(self.folder), "XDG_CACHE_HOME": str(self.folder)},
        )

    def run(self, hosts: Any, command: Any) -> Any:
        with Executor(self.cluster) as reach:
            return reach.run(hosts, command, limits=Limits(connect_s=60)).check()

    def looks(self) -> Any:
        return [r.text for r in self.run(self.hosts, f"cd /root/seat && {LOOK}").values()]


@pytest.fixture
def seat(lab: Lab, cluster: Cluster, tmp_path: Path) -> Iterator[Any]:
    """What workers would answer to this machine goes nowhere; the master passes on."""
    folder = tmp_path / "seat"
    folder.mkdir()
    for name in ("hosts", "cluster.toml"):
        (folder / name).write_text((cluster.folder / name).read_text())
    with (folder / "cluster.toml").open("a") as settings:
        settings.write(f'gateway = "{cluster.master.address}"\n')
    with silenced(lab, lab.hosts[1:]):
        made = Seat(folder)
        yield made
        made.run(made.hosts, "rm -rf /root/seat")


@pytest.fixture
def source(tmp_path: Path) -> Any:
    """A folder here, with names that are hard to pass on and some that stay."""
    top = tmp_path / "it's [a] source"
    (top / "sub").mkdir(parents=True)
    (top / "empty").mkdir()
    (top / "sub/new\nline").write_text("one")
    (top / os.fsdecode(b"\xff*\\")).write_text("two")
    (top / "left [out]").mkdir()
    (top / "left [out]/file").write_text("no")
    (top / "left o").write_text("yes")
    os.utime(top / "sub", ns=(10**18, 10**18 + 123456789))
    return top


def test_all_hosts_have_what_the_laptop_has_and_nothing_of_the_master_s_own(seat: Any, source: Any) -> None:
    """A file that only the master's copy has is not passed on to the others."""
    seat.run(seat.hosts[:1], "mkdir /root/seat && echo mine >/root/seat/mine && touch -d @1 /root/seat/mine")
    done = seat.inv("copy", str(source), "/root/seat", "--exclude", "left [[]out]")
    master, *others = seat.looks()

    assert 0 == done.returncode, done.stderr
    assert "(4)  3 files, " in done.stdout, "the master, which has its files from here, is reported as the others"
    assert 1 == len(set(others))
    assert "mine" not in others[0]
    assert sorted(master.splitlines()) == sorted([*others[0].splitlines(), "./mine|644|5|1.0000000000"])
    here = subprocess.run(["sh", "-c", f"{LOOK} | grep -av 'left .out'"], capture_output=True, check=True, cwd=source)
    assert here.stdout.decode(errors="replace") == others[0]


def test_dry_run_says_what_each_host_would_get_and_changes_nothing(seat: Any, source: Any) -> None:
    """Compared with what is here, on the master as on the others."""
    first = seat.inv("copy", str(source), "/root/seat", "--dry-run")
    assert 0 == first.returncode, first.stderr
    assert "(4)  would get 4 files, 11 bytes\n" in first.stdout
    with pytest.raises(Exception, match="4 of 4 hosts failed"):
        seat.looks()
    assert 0 == seat.inv("copy", str(source), "/root/seat").returncode
    seat.run([seat.hosts[0], seat.hosts[2]], "echo more >/root/seat/more")
    (source / "sub/late").write_text("three")
    before = seat.looks()
    planned = seat.inv("copy", str(source), "/root/seat", "--dry-run")

    assert before == seat.looks()
    assert "(2)  would get 1 file, 5 bytes, 1 there that are not in the source" in planned.stdout, planned
    assert "(2)  would get 1 file, 5 bytes\n" in planned.stdout


def test_delete_removes_what_was_agreed_on_the_master_too(seat: Any, source: Any) -> None:
    """Asked for before anything is sent; what was excluded is nobody's surplus."""
    assert 0 == seat.inv("copy", str(source), "/root/seat").returncode
    seat.run(
        [seat.hosts[0], seat.hosts[2]],
        "mkdir -p /root/seat/old/deep && echo x >/root/seat/old/deep/file && echo y >/root/seat/keep.me",
    )
    (source / "sub/late").write_text("three")
    before = seat.looks()
    asked = seat.inv("copy", str(source), "/root/seat", "--delete", "--exclude", "keep.me")
    unchanged = seat.looks()
    done = seat.inv("copy", str(source), "/root/seat", "--delete", "--exclude", "keep.me", "--yes")
    after = seat.looks()

    assert 2 == asked.returncode, asked
    assert "remove 6 files and folders below /root/seat on 2 hosts?" in asked.stderr
    assert before == unchanged
    assert 0 == done.returncode, done.stderr
    assert not any("/old" in look for look in after)
    assert ["keep.me" in look for look in after] == [True, False, True, False]
    assert 1 == len({"\n".join(line for line in look.splitlines() if "keep.me" not in line) for look in after})


def test_what_rsync_would_put_elsewhere_on_the_master_is_refused(seat: Any, source: Any) -> None:
    """A file where the master has a folder, a folder where it has a link: no worker would get either."""
    seat.run(seat.hosts[:1], "mkdir -p /root/seat/models && ln -s models /root/seat/link")
    file = str(source / "left o")
    refused = [
        seat.inv("copy", what, f"/root/seat/{place}")
        for what, place in ((file, "models"), (file, "link"), (str(source), "link"))
    ]
    into = seat.inv("copy", file, "/root/seat/models/")

    assert [1, 1, 1] == [r.returncode for r in refused], refused
    assert "/root/seat/models is a folder here and none in the source: end DST with a slash" in refused[0].stderr
    assert "/root/seat/link is a link here to models, and a copy follows none" in refused[1].stderr
    assert "/root/seat/link is a link here to models, and a copy follows none" in refused[2].stderr
    assert 0 == into.returncode, into.stderr
    assert {"yes"} == {r.text for r in seat.run(seat.hosts, "cat '/root/seat/models/left o'").values()}
