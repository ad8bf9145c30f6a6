"""Files to all hosts over a chain of relays: what arrives, what is sent, and what happens when a host does not play along."""

import contextlib
import hashlib
import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.broadcast.copy import copy, transfer
from cluster.broadcast.onhost import parts
from cluster.broadcast.onhost.file_tree import FileEntry, listed, missing, scan
from cluster.errors import ClusterError, ConfigError
from cluster.inventory import ROOT, Cluster
from cluster.ssh import capture
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from lab import lab as labs
from lab.record import Lab
from tests.conftest import PATIENCE_S, Inv, wait_for
from tests.faults.breaking import inside

LOOK = (
    r"cd {} && find . -printf '%p|%y|%m|%U:%G|%T@|%l\n' | sort && find . -type f -print0 | sort -z | xargs -0 -r md5sum"
)


@pytest.fixture
def source(reach: Executor, cluster: Cluster) -> Iterator[Any]:
    """A folder on the master with everything that makes copying hard, gone after the test."""
    script = r"""rm -rf /root/src; mkdir -p /root/src/sub/deep /root/src/empty && cd /root/src
head -c 3000000 /dev/urandom >big; : >none; echo x >"sub/a 'b\" \$c"; printf x >"sub/new
line"; printf x >"sub/$(printf '\377\376')"; ln -s ../big sub/link; ln -s /nowhere dead; chmod 640 big; chmod 555 sub/deep
chown 1234:2345 none; touch -d @1000000000.123456789 big sub; truncate -s 5M sparse; echo end >>sparse; mkfifo pipe"""
    reach.run([cluster.master], script).check()
    yield "/root/src"
    reach.run(cluster.hosts, "rm -rf /root/src /root/copy /tmp/copy").check()


@pytest.mark.promise("copy")
def test_everything_arrives_as_it_was(reach: Executor, cluster: Cluster, source: Any) -> None:
    """Names with quotes, newlines and bytes that are no text; owner, mode, time to the nanosecond; links; holes."""
    done = copy(reach, cluster, cluster.hosts, transfer(source, "/root/copy"))

    assert not done.failed
    assert ("pipe",) == done.left_out
    looks = reach.run(cluster.hosts, LOOK.format("/root/copy")).check()
    assert 1 == len(looks.groups())
    original = reach.run([cluster.master], LOOK.format(source).replace("find .", "find . ! -name pipe", 1))
    assert original.check()[cluster.master].stdout == looks[cluster.hosts[1]].stdout
    sparse = reach.run(
        cluster.hosts, "du -k /root/copy/sparse | cut -f1; ls -A /root/copy | grep -c part || true"
    ).check()
    assert all(int(kib) < 128 and parts == "0" for kib, parts in (r.text.split() for r in sparse.values())), (
        "5 MB of holes"
    )


def test_a_copy_that_says_more_than_memory_holds_has_its_outcome(
    reach: Executor, cluster: Cluster, source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day's progress goes to the disk, and how it went is said last."""
    monkeypatch.setattr(capture, "HEAD_BYTES", 1)
    monkeypatch.setattr(capture.MemoryBudget.__init__, "__defaults__", (1, 1))
    done = copy(reach, cluster, cluster.hosts, transfer(source, "/root/copy"))

    assert [None] * len(cluster.hosts) == [o.error for o in done.outcomes]
    assert {6} == {o.files for o in done.outcomes}


def test_encrypted_and_plain_carry_no_secret_on_a_command_line(reach: Executor, cluster: Cluster, source: Any) -> None:
    """Nobody who lists the processes of a host learns it; TLS brings the same files."""
    spying = threading.Event()
    seen = []

    def spy() -> None:
        while not spying.is_set():
            seen.append(reach.run(cluster.hosts[1:], "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ | tr '\\0' ' '"))

    secrets_made: list[str] = []
    thread = threading.Thread(target=spy)
    thread.start()
    import cluster.broadcast.copy as module

    original = module.secrets.token_hex

    def noted(nbytes: int | None = None) -> str:
        secrets_made.append(original(nbytes))
        return secrets_made[-1]

    module.secrets.token_hex = noted
    try:
        done = copy(reach, cluster, cluster.hosts, transfer(source, "/root/copy", encrypt=True))
    finally:
        module.secrets.token_hex = original
        spying.set()
        thread.join(PATIENCE_S)

    assert not done.failed
    assert seen
    transfer_secret = max(secrets_made, key=len)
    assert not any(transfer_secret.encode() in r.stdout for fan in seen for r in fan.values())


@pytest.fixture
def large(lab: Lab, cluster: Cluster, reach: Executor) -> Iterator[Any]:
    """A file of 40 MB on the master, and links on which it takes seconds."""
    reach.run([cluster.master], "mkdir -p /root/src && head -c 40000000 /dev/urandom >/root/src/f").check()
    for host in lab.hosts[1:]:
        labs.slow(lab, host, mbit=60, delay_ms=None)
    yield "/root/src"
    labs.heal(lab, lab.hosts)
    reach.run(cluster.hosts, "rm -rf /root/src /root/copy", limits=Limits(connect_s=60)).check()


@contextlib.contextmanager
def striking(lab: Lab, victim: Any, strike: Any) -> Iterator[Any]:
    """While it lasts: the strike comes when the victim has got 5 MB."""
    part = lab.host_folder(victim) / "upper/root/copy/.f.dlami-part"

    def has_some() -> Any:
        with contextlib.suppress(FileNotFoundError):
            return part.stat().st_blocks * 512 > 5_000_000
        return False

    def wait_and_strike() -> None:
        wait_for(has_some, 120, "it receives")
        strike(lab, victim)

    thread = threading.Thread(target=wait_and_strike)
    thread.start()
    yield
    thread.join(PATIENCE_S)


def test_a_host_that_dies_in_the_middle_is_routed_around(
    lab: Lab, cluster: Cluster, reach: Executor, large: Any
) -> None:
    """The hosts after it get everything, it is named, and a second run sends only to it, and only what it has not."""
    asked = transfer(large, "/root/copy", silence_s=8)
    with striking(lab, lab.hosts[1], labs.crash):
        done = copy(reach, cluster, cluster.hosts[1:], asked)

    assert [cluster.hosts[1]] == [o.host for o in done.failed], done
    sums = reach.run([cluster.master, *cluster.hosts[2:]], "cat /root/[sc]*/f | md5sum").check()
    assert 1 == len(sums.groups())
    labs.heal(lab, lab.hosts)
    assert 0 == int(reach.run([cluster.hosts[1]], "ls /root/copy | wc -l").check()[cluster.hosts[1]].text)
    again = copy(reach, cluster, cluster.hosts[1:], asked)
    assert [1, 0, 0] == [o.files for o in again.outcomes], again
    assert 0 < again.outcomes[0].bytes < 36_000_000
    assert sums[cluster.master].stdout == reach.run([cluster.hosts[1]], "md5sum </root/copy/f")[cluster.hosts[1]].stdout
    assert "f\n" == reach.run([cluster.hosts[1]], "ls -A /root/copy")[cluster.hosts[1]].text


def test_a_host_that_goes_silent_is_routed_around(lab: Lab, cluster: Cluster, reach: Executor, large: Any) -> None:
    """Packets vanish: after the silence limit the host before it goes on with the next. What it has got it keeps."""
    odd = cluster.hosts[2]
    with striking(lab, lab.hosts[2], labs.cut):
        done = copy(reach, cluster, cluster.hosts[1:], transfer(large, "/root/copy", silence_s=8))
    labs.heal(lab, lab.hosts)

    assert [odd] == [o.host for o in done.failed], done
    wait_for(
        lambda: "0\n" == reach.run([odd], "pgrep -fc '[b]roadcast.onhost.relay' || true")[odd].text,
        120,
        "its relay has given up",
    )
    assert ".f.dlami-part\n" == reach.run([odd], "ls -A /root/copy")[odd].text, "nothing half-written has the name"
    again = copy(reach, cluster, [odd], transfer(large, "/root/copy"))
    assert [(1, True)] == [(o.files, 0 < o.bytes < 36_000_000) for o in again.outcomes], again
    sums = reach.run([cluster.master, odd], "cat /root/[sc]*/f | md5sum").check()
    assert 1 == len(sums.groups())


@pytest.mark.parametrize("number", ["TERM", "KILL"])
def test_nobody_waits_for_a_master_whose_part_was_ended(
    lab: Lab, cluster: Cluster, reach: Executor, large: Any, number: str
) -> None:
    """It is said at once, in words; the other hosts' parts are ended instead of waiting for who never comes."""

    def end_head(lab: Lab, _host: Any) -> None:
        inside(lab, lab.hosts[0], f"pkill -{number} -f '[b]roadcast.onhost.relay'", check=True)

    asked = transfer(large, "/root/copy", silence_s=3600)
    said = rf"^the master {cluster.master}: (its part of the copy came to no end: it exited 143|the command was ended there by a signal); copy again$"
    with striking(lab, lab.hosts[1], end_head), pytest.raises(ClusterError, match=said):
        copy(reach, cluster, cluster.hosts[1:], asked)

    assert {"0\n"} == {
        r.text for r in reach.run(cluster.hosts, "pgrep -fc '[b]roadcast.onhost.relay' || true").values()
    }


def test_ctrl_c_leaves_nothing(lab: Lab, cluster: Cluster, reach: Executor) -> None:
    """No relay and no unfinished file on any host."""
    reach.run([cluster.master], "mkdir -p /root/src && head -c 30000000 /dev/urandom >/root/src/f").check()
    for host in lab.hosts[1:]:
        labs.slow(lab, host, mbit=30, delay_ms=None)
    script = (
        "import sys; from cluster.inventory import load_cluster; from cluster.ssh.fanout import Executor; "
        "from cluster.broadcast.copy import copy, transfer; c = load_cluster(); r = Executor(c); "
        "copy(r, c, c.hosts[1:], transfer('/root/src', '/root/copy'))"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        env={**os.environ, "CLUSTER": f"lab:{lab.name}"},
    )
    part = "ls /root/copy/.f.dlami-part 2>/dev/null | wc -l"
    wait_for(lambda: all("1\n" == r.text for h, r in reach.run(cluster.hosts[1:], part).items()), 120, "all receive")
    running.send_signal(2)
    running.communicate(timeout=PATIENCE_S)
    labs.heal(lab, lab.hosts)

    assert {"0\n"} == {r.text for r in reach.run(cluster.hosts, part).values()}
    assert {"0\n"} == {
        r.text for r in reach.run(cluster.hosts, "pgrep -fc '[b]roadcast.onhost.relay' || true").values()
    }
    reach.run(cluster.hosts, "rm -rf /root/src /root/copy").check()


@pytest.mark.promise("copy")
def test_inv_copy_from_outside_goes_to_the_master_once(
    inv: Inv, cluster: Cluster, reach: Executor, tmp_path: Path
) -> None:
    """This machine is no host of the lab: the file is taken to the master, and from there to the others."""
    hard = 'two words, it\'s "more" $HOME;\n* `line`'
    (tmp_path / hard).write_bytes(b"content")
    into = inv("copy", str(tmp_path / hard), "/root/copy/")
    named = inv("copy", str(tmp_path / hard), f"/root/copy/sub/{hard}")

    assert (0, 0) == (into.returncode, named.returncode), into.stderr + named.stderr
    path = shlex.quote(hard)
    assert {"contentcontent"} == {
        r.text for r in reach.run(cluster.hosts, f"cd /root/copy && cat {path} sub/{path}").check().values()
    }
    reach.run(cluster.hosts, "rm -rf /root/copy").check()


def test_inv_copy_on_the_master_deletes_only_when_agreed(cluster: Cluster, reach: Executor, source: Any) -> None:
    """--dry-run and --delete: shown, asked for, done; excluded names are nobody's surplus."""
    copy(reach, cluster, cluster.hosts, transfer(source, "/root/copy"))
    reach.run(
        cluster.hosts[1:2], "mkdir /root/copy/extra && echo x >/root/copy/extra/file && echo y >/root/copy/keep.me"
    ).check()
    listed = " ".join(h.address for h in cluster.hosts)
    folder = f"mkdir -p /root/m && for h in {listed}; do echo $h slots=1; done >/root/m/hosts"
    inv = f"{folder} && cd '{ROOT}' && CLUSTER=/root/m '{cluster.python}' -m invoke copy {source} /root/copy --exclude keep.me --exclude pipe"
    planned = reach.run([cluster.master], f"{inv} --dry-run")[cluster.master]
    asked = reach.run([cluster.master], f"{inv} --delete")[cluster.master]
    there = reach.run(cluster.hosts[1:2], "ls /root/copy/extra").check()
    done = reach.run([cluster.master], f"{inv} --delete --yes")[cluster.master]

    assert "(1)  would get 0 files, 0 bytes, 2 there that are not in the source" in planned.text, planned
    assert "remove 2 files and folders below /root/copy on 1 host?" in asked.stderr.decode()
    assert 2 == asked.exit_code
    assert "file\n" == there[cluster.hosts[1]].text
    assert done.ok, done
    assert "keep.me\n" == reach.run(cluster.hosts[1:2], "ls /root/copy | grep -e keep -e extra")[cluster.hosts[1]].text
    reach.run(
        [cluster.master],
        "rm -rf /root/m; cd /root && " + f'"{cluster.python}" -c \'import sys; sys.path.insert(0, "{ROOT}"); '
        "from cluster import connections; connections.disconnect()'",
    )


@pytest.mark.parametrize(("dst", "expected"), [("relative", "not an absolute path"), ("/", "not a place to copy to")])
def test_bad_destinations_are_refused(dst: Any, expected: Any) -> None:
    """Before anything is reached."""
    with pytest.raises(ConfigError, match=expected):
        transfer("/", dst)


def test_a_file_goes_on_only_if_all_who_need_it_have_a_beginning(tmp_path: Path) -> None:
    """And only from where the shortest ends, if what they claim is true."""
    one, other = parts.Need({1, 2}, {1: [(10, "a")]}), parts.Need({1, 3}, {1: [(20, "b")], 3: [(5, "c")]})
    bare = parts.Need({1}, {})
    (tmp_path / "f").write_bytes(bytes(30))
    entry = FileEntry("f", "f", 0, 0, 0, 0, 30)
    true = [(at, hashlib.sha256(bytes(at)).hexdigest()) for at in (10, 20)]

    assert parts.Need({1, 2, 3}, {1: [(10, "a"), (20, "b")], 3: [(5, "c")]}) == one.merged(other) == other.merged(one)
    assert {3: [(5, "c")]} == one.merged(other).merged(bare).parts == bare.merged(one.merged(other)).parts
    assert one == parts.Need.read(json.loads(json.dumps(one.message())))
    for claims, expected in ((true, {0: (10, true)}), ([*true, (20, "false")], {}), ([(40, true[0][1])], {})):
        assert expected == parts.starts(parts.Need({0}, {0: claims}), [entry], lambda e: str(tmp_path / e.path))
    assert one.is_served([1, 2], {1: (10, [(10, "a")])})
    assert not one.is_served([1], {})
    assert not bare.is_served([1], {1: (10, [(10, "a")])})


def test_same_size_and_time_is_the_same_file(tmp_path: Path) -> None:
    """And nothing else is."""
    (tmp_path / "a").write_text("one")
    entries, _ = scan(str(tmp_path))
    assert [] == missing(entries, str(tmp_path))
    (tmp_path / "a").write_text("two")
    os.utime(tmp_path / "a", ns=(1, 1))

    assert [1] == missing(entries, str(tmp_path))


@pytest.mark.parametrize(
    "change", ["rm a", "echo more >>a", "rm a && mkdir a", "rm -r sub && ln -s / sub", "rm -r sub"]
)
def test_what_is_not_on_the_master_as_it_was_sent_is_no_copy_s_source(tmp_path: Path, change: str) -> None:
    """The hosts after it would be told that they have all of it; other times and what came besides are no matter."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "a").write_text("one")
    rows = [entry.row() for entry in scan(str(tmp_path))[0]]
    (tmp_path / "more").write_text("not sent")
    os.utime(tmp_path / "a", ns=(1, 1))
    assert ["", "a", "sub"] == [e.path for e in listed(rows, str(tmp_path), (), foreseen=False)[0]]
    subprocess.run(["sh", "-c", change], cwd=tmp_path, check=True)

    with pytest.raises(OSError, match="is not there as it was sent"):
        listed(rows, str(tmp_path), (), foreseen=False)
