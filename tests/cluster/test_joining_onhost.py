"""What runs on a host that joins: what it says of itself, its files, what it mounts. Nothing of this machine is changed."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from cluster.join.onhost import files, look, member, nfs


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A home of its own, and programs by name and shell script, which are found and no others."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(nfs, "_SBIN", ())

    def put(**scripts: str) -> None:
        for name, text in scripts.items():
            file = tmp_path / "bin" / name.replace("_", "-")
            file.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{text}\n")
            file.chmod(0o755)

    return put


@pytest.mark.parametrize(
    ("smi", "gpus"),
    [("", 0), ("echo 'GPU 0: V100'; echo 'GPU 1: V100'; echo ' GPU'", 2), ("echo 'No devices were found'; exit 6", 0)],
)
def test_a_host_counts_its_gpus(host: Any, smi: str, gpus: int) -> None:
    """As its driver lists them; without one there is none."""
    if smi:
        host(nvidia_smi=smi)
    assert gpus == look.probe("/none")["gpus"]


@pytest.mark.parametrize(("sudo", "may"), [("exit 0", True), ("exit 1", False), ("", False), ("exec sleep 60", False)])
def test_who_may_be_root_is_root_or_is_let_by_sudo(
    host: Any, monkeypatch: pytest.MonkeyPatch, sudo: str, may: bool
) -> None:
    """Without a password; a sudo that asks for one is waited for no longer than a moment."""
    if sudo:
        host(sudo=sudo)
    ends = look._ends_well
    monkeypatch.setattr(look, "_ends_well", lambda *words: ends(*words, timeout_s=0.05 if "sleep" in sudo else 10))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert may is look.probe("/none")["may_be_root"]
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert look.probe("/none")["may_be_root"]


def test_a_file_is_replaced_whole_and_keeps_its_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through a link; the same again changes nothing, and what fails leaves all as it was."""
    file, link = tmp_path / "f", tmp_path / "l"
    link.symlink_to("f")
    assert "" == files.read(str(file))
    assert files.write(str(link), "a")
    assert (0o600, True) == (file.stat().st_mode & 0o777, link.is_symlink())
    file.chmod(0o640)
    node = file.stat().st_ino
    assert not files.write(str(link), "a", 0o644)
    assert node == file.stat().st_ino
    assert files.write(str(link), "", 0o644)
    assert ("", 0o640) == (files.read(str(link)), file.stat().st_mode & 0o777)
    assert files.write(str(tmp_path / "new"), "", 0o644)
    assert 0o644 == (tmp_path / "new").stat().st_mode & 0o777

    def fails(*_: Any) -> None:
        raise OSError(28, "No space left")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="No space left"):
        files.write(str(file), "b")
    assert ("", {"f", "l", "new"}) == (files.read(str(file)), {p.name for p in tmp_path.iterdir()})


def test_a_key_that_is_there_is_kept(host: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that cannot be made leaves nothing; its folder is this user's alone."""
    folder = tmp_path / "home/.ssh/dlami-cluster"
    host(ssh_keygen="exit 1")
    with pytest.raises(Exception, match="returned non-zero exit status 1"):
        member.key_pair("c")
    assert ([], 0o700) == (list(folder.iterdir()), folder.stat().st_mode & 0o777)
    host(ssh_keygen='shift 8; echo private >"$1"; echo "public $*" >"$1.pub"')
    host(ssh_keygen='while [ "$1" != -f ]; do shift; done; echo private >"$2"; echo public >"$2.pub"')
    assert ("private\n", "public") == member.key_pair("c")
    host(ssh_keygen="exit 1")
    assert ("private\n", "public") == member.key_pair("c")
    assert {"c", "c.pub"} == {p.name for p in folder.iterdir()}


@pytest.mark.parametrize(
    ("programs", "why"),
    [
        ({"exportfs": "exit 1"}, ""),
        ({}, "exportfs is missing: install it"),
        ({"apt_get": "exit 0"}, ""),
        ({"apt_get": "echo E: no network >&2; exit 100"}, "nfs-kernel-server cannot be installed: apt-get: E: no network"),
        ({"dnf": "exit 0"}, ""),
        ({"dnf": "exit 3"}, "exportfs is missing and nfs-utils cannot be installed: dnf: exited 3"),
        ({"dnf": "exit 0", "apt_get": "echo out; exit 3"}, "nfs-kernel-server cannot be installed: apt-get: out"),
    ],
)  # fmt: skip
def test_what_is_missing_is_installed_from_the_distribution(host: Any, programs: dict[str, str], why: str) -> None:
    """Debian's or Amazon's; nothing where it is there."""
    host(**programs)
    if not why:
        nfs._needs("exportfs")
        return
    with pytest.raises(nfs.NfsError) as error:
        nfs._needs("exportfs")
    assert str(error.value).endswith(why)


def test_what_an_unmountable_folder_is_is_said_in_an_answer(
    host: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what was done where it can be; the newest of several mounts counts, and /etc/fstab has one row of it."""
    said: list[Any] = []
    fstab = {"text": ""}
    mounts = [f"x:/old {tmp_path}/m nfs4", f"s:{tmp_path}/m {tmp_path}/m nfs4"]
    monkeypatch.setattr(nfs, "say", said.append)
    monkeypatch.setattr(nfs, "_mounts", lambda: mounts)
    monkeypatch.setattr(nfs, "read", lambda path: fstab["text"])
    monkeypatch.setattr(nfs, "write", lambda path, text, mode: fstab.update(text=text))
    folder = f"{tmp_path}/m"
    nfs.main("look", folder, "s")
    nfs.main("mount", folder, "s")
    nfs.main("look", folder, "other")
    nfs.main("look", "/etc/x", "s")
    assert [f"s:{folder}", f"{folder} was mounted already", "", ""] == [one["done"] for one in said]
    assert ["", "", f"s:{folder} is mounted on {folder}: unmount it, or choose another folder with --shared"] == [
        one["failed"] for one in said[:3]
    ]
    assert said[3]["failed"].startswith("/etc/x is a folder of the system")
    mounts.clear()
    host(mount="echo mount.nfs4: timed out >&2; exit 32", mount_nfs4="")
    shutil.move(tmp_path / "bin/mount-nfs4", tmp_path / "bin/mount.nfs4")
    nfs.main("mount", folder, "s")
    assert (
        "mount: mount.nfs4: timed out; do the hosts' firewalls (security groups) let them reach s:2049?"
        == said[-1]["failed"]
    )
    host(mount="exit 0")
    fstab["text"] = f"a:/ / ext4\nold:/x {folder} nfs4\n\n"
    for _ in range(2):
        nfs.main("mount", folder, "s")
    row = f"s:{folder} {folder} nfs4 nfsvers=4.2,hard,timeo=600,retrans=2,_netdev,nofail 0 0"
    assert (f"a:/ / ext4\n\n{row}\n", f"{folder} is mounted from s") == (fstab["text"], said[-1]["done"])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"ssh-ed25519 AAAA J\xe9r\xf4me", b"ssh-ed25519 AAAA J\xe9r\xf4me\npublic\n"),
        (b"ssh-ed25519 AAAA a\r\n", b"ssh-ed25519 AAAA a\r\npublic\n"),
        (b"\xef\xbb\xbfpublic\r\n", b"\xef\xbb\xbfpublic\r\n"),
        (b"", b"public\n"),
    ],
)
def test_the_keys_that_are_there_keep_every_byte(host: Any, tmp_path: Path, before: bytes, after: bytes) -> None:
    """Of any encoding, with any ends of lines; a key that is there is not put there again."""
    ssh = tmp_path / "home/.ssh"
    ssh.mkdir(parents=True)
    (ssh / "authorized_keys").write_bytes(before)
    member.join("x", "private", "public", "known", "config")

    assert after == (ssh / "authorized_keys").read_bytes()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"# caf\xe9\nHost a\n", b"# caf\xe9\nHost a\n"),
        (b"\xef\xbb\xbfHost a\r\n", b"Host a\r\n"),
    ],
)
def test_the_settings_that_are_there_keep_every_byte(host: Any, tmp_path: Path, before: bytes, after: bytes) -> None:
    """Our line comes first; a byte order mark would be taken for a part of the word behind it."""
    ssh = tmp_path / "home/.ssh"
    ssh.mkdir(parents=True)
    (ssh / "config").write_bytes(before)
    member.join("x", "private", "public", "known", "config")
    member.join("x", "private", "public", "known", "config")

    assert member.INCLUDE.encode() + b"\n" + after == (ssh / "config").read_bytes()
