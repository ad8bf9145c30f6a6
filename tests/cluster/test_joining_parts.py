"""Hosts that are joined, part by part: who is meant, what is asked for and said, which folder is shared. No host."""

import base64
import dataclasses
import hashlib
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest

from cluster.errors import ClusterError, ConfigError
from cluster.hosts import Host
from cluster.inventory import Cluster, SshSettings
from cluster.join import discovery, join, keys, share
from cluster.join.console import Consoles
from cluster.join.discovery import Gathered, JoinRequest
from cluster.join.files import request_of, targets
from cluster.join.host_keys import NotTheHost, Proof, ProvenKeys
from cluster.join.join import Joined
from cluster.join.keys import HostKey, key_in, known_as
from cluster.join.members import JoiningHost, NamedHost, hosts_of, named
from cluster.join.onhost import look as joining_look
from cluster.ssh.fanout import Executor
from cluster.ssh.onhost import pci
from cluster.ssh.result import FanOut, FanOutError, Result
from tests.cluster.reach_here import ReachHere

A, B, C = (Host(rank=n, address=a, slots=1) for n, a in enumerate(("10.0.0.1", "10.0.0.2", "10.0.0.3")))
KEY, RSA = (
    HostKey(kind, base64.b64encode(hashlib.sha256(kind.encode()).digest() * 2).decode())
    for kind in ("ssh-ed25519", "ssh-rsa")
)


def a_host(address: str, **more: Any) -> JoiningHost:
    usual = {"user": "ubuntu", "home": "/home/ubuntu", "gpus": 0, "may_be_root": True, "has_project": True}
    return JoiningHost(address=address, **{**usual, "has_runtime": True, **more})


def a_request(**more: Any) -> JoinRequest:
    return JoinRequest(**{"words": ("a",), "name": "plain", "access": SshSettings(), **more})


def a_cluster(*hosts: Host, **more: Any) -> Cluster:
    usual = {"name": "plain", "folder": Path("/f"), "shared": "/home/u/jobs", "project": "/p", "is_shared": False}
    return Cluster(hosts=hosts, **{**usual, **more})


def answering(monkeypatch: pytest.MonkeyPatch, module: Any, *rounds: dict[Host, Any]) -> None:
    """What hosts answer, round by round; a text in an answer's place is why there is none."""
    left = list(rounds)

    def ask(reach: Executor, hosts: Any, *_: Any, **__: Any) -> tuple[FanOut, dict[Host, Any]]:
        said = left.pop(0)
        failed = {h: said[h] for h in hosts if isinstance(said.get(h), str)}
        results = {
            h: Result(host=h, exit_code=1 if h in failed else 0, stderr=failed.get(h, "").encode(), seconds=0.0)
            for h in hosts
        }
        return FanOut("ask", results), {h: said[h] for h in hosts if h in said and h not in failed}

    monkeypatch.setattr(module, "ask", ask)


@pytest.mark.parametrize(
    ("word", "is_one"),
    [
        ("10.0.0.1", True), ("gpu[1-2]", True), ("localhost", True), ("3", False), ("1-2", False), ("10-", False), ("10-a", True), ("@all", False),
        ("a/b", False), ("-x", False), ("", False),
    ],
)  # fmt: skip
def test_an_address_is_what_one_can_log_in_to(word: str, is_one: bool) -> None:
    """No rank, no range of ranks, no group, nothing that ssh takes for an option."""
    try:
        assert named([word])
    except ConfigError as e:
        assert not is_one, e


def test_gpus_that_cannot_be_counted_are_not_taken_for_one_slot() -> None:
    """Seven of eight GPUs would stay idle, and nobody would see it; slots that were given are believed."""
    told = {a: a_host(f"own-{a}", gpus=g) for a, g in (("a", 8), ("b", None))}
    with pytest.raises(ConfigError, match=r"nvidia-smi fails on b\b.*--slots"):
        hosts_of([NamedHost(address="a"), NamedHost(address="b")], told)
    assert [8, 8] == [h.slots for h in hosts_of([NamedHost(address="a"), NamedHost(address="b", slots=8)], told)]


@pytest.mark.parametrize(
    ("smi", "cards", "gpus"),
    [
        ("echo 'GPU 0: NVIDIA H100'; echo 'GPU 1: NVIDIA H100'", 2, 2),
        ("echo 'GPU 0: NVIDIA H100'; echo 'Unable to determine the device handle for GPU1'; exit 15", 2, None),
        ("echo 'NVIDIA-SMI has failed because it could not communicate with the driver'; exit 9", 2, None),
        ("echo 'NVIDIA-SMI has failed because it could not communicate with the driver'; exit 9", 0, 0),
        ("echo 'No devices found.'", 0, 0),
        (None, 2, 0),
    ],
)
def test_a_host_counts_its_gpus_or_says_that_it_cannot(
    smi: str | None, cards: int, gpus: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image of a CPU instance has nvidia-smi, too: what tells them apart is the PCI bus."""
    for number in range(cards):
        (tmp_path / f"pci/{number}").mkdir(parents=True)
        (tmp_path / f"pci/{number}/vendor").write_text("0x10de\n")
        (tmp_path / f"pci/{number}/class").write_text("0x030200\n")
    if smi:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{smi}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(pci, "BUS", str(tmp_path / "pci"))
    assert gpus == joining_look._gpus()


@pytest.mark.parametrize(
    ("slots", "gpus", "has"),
    [
        ((None, None), (8, 8), [8, 8]), ((None, None), (0, 0), [1, 1]), ((2, 3), (8, 8), [2, 3]), ((0, 0), (8, 8), [0, 8]),
        ((0, 0), (0, 0), [0, 1]),
    ],
)  # fmt: skip
def test_only_a_leader_may_do_without_training(
    slots: tuple[int | None, int | None], gpus: tuple[int, int], has: list[int]
) -> None:
    """Slots as they were given, else one for each GPU, else one; spares come last."""
    members = [NamedHost(address=a, slots=s) for a, s in zip("ab", slots, strict=True)]
    told = {a: a_host(f"own-{a}", gpus=g) for a, g in zip("ab", gpus, strict=True)}
    assert has == [h.slots for h in hosts_of(members, told)]
    spare = [dataclasses.replace(members[0], is_spare=True), members[1]]
    assert [("own-b", 0, False), ("own-a", 1, True)] == [(h.address, h.rank, h.is_spare) for h in hosts_of(spare, told)]
    with pytest.raises(ConfigError, match="b is a host that is named already: its own address is own-a"):
        hosts_of(members, {**told, "b": a_host("own-a")})


def asked(folder: Path, **more: Any) -> JoinRequest:
    usual: dict[str, Any] = {"name": "", "slots": 0, "access": SshSettings(), "shared": "", "nfs": False}
    return request_of(folder, ("a",), **{**usual, **more})


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"name": "1a"}, "'1a' is no cluster's name"), ({"name": "a_b"}, "is no cluster's name"),
        ({"name": "a" * 42}, "is no cluster's name"), ({"shared": "efs"}, "--shared efs is not an absolute path"),
        ({"shared": "/srv/a b", "nfs": True}, "no space can stand"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_for_is_refused(tmp_path: Path, more: dict[str, Any], says: str) -> None:
    """Before any host is reached; the longest name has 41 letters, and a space is no trouble where nothing is served."""
    with pytest.raises(ConfigError, match=says):
        asked(tmp_path, **{"name": "a", **more})
    assert "a" * 41 == asked(tmp_path, name="a" * 41).name
    assert "/srv/a b" == asked(tmp_path, name="a", shared="/srv/a b").shared


def test_a_joined_cluster_s_file_says_how_it_is_reached(tmp_path: Path) -> None:
    """What is not set is not there; a folder that all share has no word about who has it."""
    cluster = a_cluster(A, folder=tmp_path, access=SshSettings(user="u", gateway="g"))
    joined = Joined(cluster=cluster, seen={}, known_hosts="k\n")
    hosts, known, toml = targets(joined)
    assert ("10.0.0.1 slots=1", True) == (hosts.text.splitlines()[0], known.text.startswith("k"))
    assert toml.text.startswith("# written by inv hosts.join")
    assert toml.text.endswith('[ssh]\nuser = "u"\nknown_hosts = "known_hosts"\ngateway = "g"\n')
    assert 'name = "plain"\nshared = "/home/u/jobs"\nproject = "/p"\nshared_by = "master"\n' in toml.text
    toml.path.write_text(toml.text + "[notify]\nx = 1\n")
    again = targets(dataclasses.replace(joined, cluster=dataclasses.replace(cluster, is_shared=True, shared="/efs")))[2]
    assert ('shared = "/efs"' in again.text, "shared_by" in again.text, "[notify]\nx = 1" in again.text) == (
        True,
        False,
        True,
    )


def test_the_leader_s_ways_are_tried_as_mpirun_will_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that fails is named with ssh's own last line; so is a leader that cannot try."""
    ssh = tmp_path / "bin/ssh"
    ssh.parent.mkdir()
    ssh.write_text("#!/bin/sh\nfor a; do case $a in 10.0.0.2) echo first >&2; echo closed >&2; exit 255;; esac; done\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}:/usr/bin:/bin")
    join._check_ways(ReachHere(tmp_path), A, [A, C])
    with pytest.raises(
        ClusterError, match=r"cannot log in to all others .*\n10.0.0.2: closed\ndoes the security group"
    ):
        join._check_ways(ReachHere(tmp_path), A, [A, B, C])
    with pytest.raises(
        ClusterError, match=r"^10.0.0.1: its ways to the others could not be tried: exited 255   \| down"
    ):
        join._check_ways(ReachHere(tmp_path, {"10.0.0.1": "down"}), A, [A, B])


@pytest.mark.parametrize(
    ("more", "hosts", "folder", "is_shared", "says"),
    [
        ({}, [A, B], "/{}/dlami-cluster-jobs", False, []), ({}, [A], "/{}/dlami-cluster-jobs", True, []),
        ({"shared": "/efs"}, [A, B], "/efs", True, ["/efs/jobs belongs to eve"]),
        ({"nfs": True}, [A, B], "/srv/dlami-cluster", True, ["the leader serves /srv/dlami-cluster to the others over NFS"]),
        ({"nfs": True, "shared": "/x"}, [A, B], "/x", True, ["the leader serves /x to the others over NFS"]),
    ],
)  # fmt: skip
def test_the_folder_of_jobs_is_shared_served_or_the_leader_s_own(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    more: Any,
    hosts: list[Host],
    folder: str,
    is_shared: bool,
    says: Any,
) -> None:
    """The leader's own is made in its home; of one host it is shared by all."""
    monkeypatch.setattr(join, "serve", lambda *_: None)
    monkeypatch.setattr(join, "make_folders", lambda _reach, _leader, folder, _user: f"{folder}/jobs belongs to eve")
    monkeypatch.setattr(share, "is_shared", lambda *_: True)
    said: list[str] = []
    master = a_host("10.0.0.1", home=str(tmp_path / "a b"))
    made = join._share(ReachHere(tmp_path / "homes"), a_request(**more), hosts, hosts, master, said.append)
    assert (folder.replace("/{}", str(tmp_path / "a b")), is_shared, says) == (*made, said)
    assert Path(made[0]).is_dir() is folder.startswith("/{}")
    if not more:
        with pytest.raises(FanOutError):
            join._share(ReachHere(tmp_path, {"10.0.0.1": "full"}), a_request(), hosts, hosts, master, said.append)


def test_a_folder_is_served_once_all_others_could_mount_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each host that cannot is named with why, and equal ones together."""
    reach, good = cast("Executor", None), {"failed": ""}
    addresses = [h.address for h in (A, B, C)]

    def serve(*rounds: dict[Host, Any], is_seen: bool = True, hosts: Any = (A, B, C)) -> None:
        answering(monkeypatch, share, *rounds)
        monkeypatch.setattr(share, "is_shared", lambda *_: is_seen)
        share.serve(reach, "plain", hosts, addresses, "/srv", "u")

    serve({B: good, C: good}, {A: good}, {B: good, C: good})
    with pytest.raises(ConfigError, match="--nfs: there is no host besides the leader"):
        serve(hosts=(A,))
    with pytest.raises(ClusterError, match=r"^10\.0\.0\.\[2-3\]: no nfs$"):
        serve({B: {"failed": "no nfs"}, C: {"failed": "no nfs"}})
    with pytest.raises(ClusterError, match=r"^10\.0\.0\.2: exited 1   \| gone\n10\.0\.0\.3: busy$"):
        serve({B: "gone", C: {"failed": "busy"}})
    with pytest.raises(ClusterError, match=r"^10\.0\.0\.1: is a home$"):
        serve({B: good, C: good}, {A: {"failed": "is a home"}})
    with pytest.raises(ClusterError, match=r"^10\.0\.0\.3: busy$"):
        serve({B: good, C: good}, {A: good}, {B: good, C: {"failed": "busy"}})
    with pytest.raises(ClusterError, match="/srv is mounted, and what one host writes there another does not see"):
        serve({B: good, C: good}, {A: good}, {B: good, C: good}, is_seen=False)


@pytest.fixture
def gathers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Who is to join, by what hosts show, what EC2 says, and what files know."""

    def run(words: tuple[str, ...], shown: Any, prints: Any, known: Any, **more: Any) -> Gathered:
        consoles = Consoles(fingerprints={a: frozenset(p) for a, p in prints.items()})
        monkeypatch.setattr(keys, "collected", lambda addresses, port: {a: tuple(shown.get(a, ())) for a in addresses})
        monkeypatch.setattr(discovery, "consoles", lambda addresses: consoles)
        monkeypatch.setattr(
            keys, "known_in", lambda file, address, port: frozenset(known.get((file.name, address), ()))
        )
        monkeypatch.setattr(discovery, "is_this_machine", lambda a: a in ("me", "localhost"))
        monkeypatch.setenv("HOME", str(tmp_path))
        return discovery.gather(a_request(words=words, **more), tmp_path)

    return run


def test_each_host_s_key_is_believed_for_what_vouches_for_it(gathers: Any, tmp_path: Path) -> None:
    """This machine by itself; the cluster's own file before the user's; who is left is for a person to say."""
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/known_hosts").touch()
    (tmp_path / "known_hosts").touch()
    shown = {"localhost": [RSA], "a": [KEY, RSA], "b": [KEY, RSA], "c": [KEY]}
    found = gathers(("me", "a,b", "c"), shown, {"a": [RSA.fingerprint]}, {("known_hosts", "b"): [KEY]})
    assert ("localhost", "a", "b", "c") == tuple(m.address for m in found.members)
    assert [(Proof.HERE, (RSA,)), (Proof.CONSOLE, (RSA,)), (Proof.KNOWN, (KEY,)), (Proof.NOBODY, (KEY,))] == [
        (s.proof, s.keys) for s in found.shown.values()
    ]
    assert ("c",) == tuple(s.address for s in found.unproven)
    assert {
        "address": "c",
        "keys": [{"kind": "ssh-ed25519", "fingerprint": KEY.fingerprint}],
        "vouched_for_by": "nobody",
    } == (found.record()["hosts"][3])
    assert f"c  ssh-ed25519  {KEY.fingerprint}  vouched for by nobody: compare it" == str(found.unproven[0])
    with pytest.raises(ClusterError, match=r"no SSH host key from a, c within 5 s: are they up, is port 23 open"):
        gathers(("a", "b", "c"), {"b": [KEY]}, {}, {}, access=SshSettings(port=23))
    with pytest.raises(NotTheHost) as error:
        gathers(("a", "b"), {"a": [KEY], "b": [KEY]}, {"a": ["x"]}, {("known_hosts", "b"): [RSA]})
    assert 2 == len(str(error.value).splitlines())
    assert f"'ssh-keygen -R b -f {tmp_path}/known_hosts'" in str(error.value)


def test_a_key_in_a_line_is_one_that_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its kind and whole; a port of its own is part of a host's name."""
    assert key_in(f"h {KEY} comment") == KEY
    assert key_in(f"ssh-dss {KEY.blob}") is key_in("ssh-rsa AAAA") is key_in(f"ssh-rsa {'A' * 41}") is None
    assert ("h", "[h]:2222") == (known_as("h", 22), known_as("h", 2222))


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (FileNotFoundError(), "ssh-keyscan is not on this machine"),
        (subprocess.TimeoutExpired("x", 20), "ssh-keyscan did not end within 20 s: try again, with fewer hosts"),
    ],
)
def test_a_scan_that_cannot_be_is_told(monkeypatch: pytest.MonkeyPatch, error: Exception, says: str) -> None:
    """It has five seconds for each host, and ten more."""

    def fails(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(subprocess, "run", fails)
    with pytest.raises(ClusterError, match=says):
        keys.collected(["a", "b"], 22)


def test_a_cluster_is_joined_of_what_hosts_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its hosts by their own addresses with the leader first, its folder, its project in their home, and how it is reached."""
    members = (NamedHost(address="1.1.1.1"), NamedHost(address="1.1.1.2"))
    shown = {m.address: ProvenKeys(address=m.address, keys=(KEY,), proof=Proof.KNOWN) for m in members}
    gathered = Gathered(members=members, shown=shown, consoles=Consoles(fingerprints={}))
    reached = [Host(rank=n, address=m.address, slots=1) for n, m in enumerate(members)]
    told = [{**vars(a_host(h.address, gpus=4)), "home": str(tmp_path)} for h in (A, B)]
    look = dict(zip(reached, told, strict=True))
    here = ReachHere(tmp_path / "homes")
    monkeypatch.setattr(join, "Executor", lambda cluster, label: here)
    monkeypatch.setattr(join, "_check_ways", lambda *_: None)
    monkeypatch.setattr(join, "_resolved", lambda a: a)
    said: list[str] = []
    for project, place in (("~/p", f"{tmp_path}/p"), ("/opt/~/p", "/opt/~/p")):
        answering(monkeypatch, join, look, {reached[0]: ["private", "public"]}, {h: [] for h in reached})
        request = a_request(project=project, access=SshSettings(port=23))
        made = join.join(request, gathered, tmp_path / "f", said.append)
        cluster = made.cluster
        assert (("10.0.0.1", 4), ("10.0.0.2", 4)) == tuple((h.address, h.slots) for h in cluster.hosts)
        assert (f"{tmp_path}/dlami-cluster-jobs", False, place) == (cluster.shared, cluster.is_shared, cluster.project)
        assert ("1.1.1.1", "ubuntu", tmp_path / "f/known_hosts") == (
            cluster.access.gateway, cluster.access.user, cluster.access.known_hosts
        )  # fmt: skip
        assert [f"[{a}]:23 {KEY}" for a in ("10.0.0.1", "10.0.0.2", "1.1.1.1")] == made.known_hosts.splitlines()
        assert ["10.0.0.1", "10.0.0.2"] == [made.seen[h].address for h in cluster.hosts]
    assert "2 hosts can be logged in to as ubuntu; the cluster's key is handed to them" == said[0]
    answering(monkeypatch, join, look, {reached[0]: ["private", "public"]}, {reached[0]: [], reached[1]: "read-only"})
    with pytest.raises(FanOutError, match="read-only"):
        join.join(a_request(), gathered, tmp_path / "f", said.append)
    answering(monkeypatch, join, look, {reached[0]: "no ssh-keygen"})
    with pytest.raises(FanOutError, match="no ssh-keygen"):
        join.join(a_request(), gathered, tmp_path / "f", said.append)
