"""A cluster joined by hand: whose keys are believed, who leads, which files say so. Pure; hosts are in test_plain_hosts."""

import base64
import getpass
import hashlib
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.errors import ConfigError
from cluster.hosts import Host
from cluster.inventory import ROOT, SshSettings, load_cluster
from cluster.join import keys
from cluster.join.console import Consoles, consoles, fingerprints_in
from cluster.join.discovery import Gathered, JoinRequest
from cluster.join.files import request_of, targets
from cluster.join.host_keys import Proof, ProvenKeys
from cluster.join.join import Joined, access_from_here, ssh_config
from cluster.join.keys import HostKey
from cluster.join.members import JoiningHost, NamedHost, hosts_of, named, with_new_members
from cluster.join.onhost import member, nfs, own_folders
from tests.conftest import PATIENCE_S


def a_key(seed: str, kind: str = "ssh-ed25519") -> HostKey:
    """A key whose bytes follow from a word."""
    return HostKey(kind, base64.b64encode(hashlib.sha256(seed.encode()).digest() * 2).decode())


A, B, RSA = a_key("a"), a_key("b"), a_key("r", "ssh-rsa")

CONSOLE = """\
[   14.2] cloud-init[1234]: Cloud-init v. 23 running 'modules:final'
ci-info: no authorized SSH keys fingerprints found for user ubuntu.
<14>Nov 22 10:00:00 cloud-init: -----BEGIN SSH HOST KEY FINGERPRINTS-----
<14>Nov 22 10:00:00 cloud-init: 256 {print} root@ip-10-0-0-2 (ED25519)
<14>Nov 22 10:00:00 cloud-init: -----END SSH HOST KEY FINGERPRINTS-----
-----BEGIN SSH HOST KEY KEYS-----
{key} root@ip-10-0-0-2
-----END SSH HOST KEY KEYS-----
[   15.0] login:
"""


def test_a_fingerprint_is_the_one_that_ssh_keygen_shows(tmp_path: Path) -> None:
    """What a person compares must be what every other tool says."""
    path = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True, timeout=PATIENCE_S)
    shown = subprocess.run(["ssh-keygen", "-lf", f"{path}.pub"], capture_output=True, text=True, check=True).stdout
    key = keys.key_in(path.with_suffix(".pub").read_text())

    assert key and key.fingerprint == shown.split()[1]


def test_what_a_scan_printed_is_sorted_by_host_and_kind() -> None:
    """The best kind first; comments, other hosts and half a line are no keys; another port has brackets."""
    text = f"# 10.0.0.2:22 SSH-2.0\n10.0.0.2 {RSA}\n10.0.0.2 {A}\n10.0.0.9 {B}\n10.0.0.3 ssh-ed25519 AAAA\n"

    assert {"10.0.0.2": (A, RSA), "10.0.0.3": ()} == keys.shown(text, ["10.0.0.2", "10.0.0.3"], 22)
    assert {"h": (B,)} == keys.shown(f"[h]:2222 {B}\n", ["h"], 2222)
    assert f"[h]:2222 {B}\n" == keys.known_hosts({"h": [B]}, 2222)


def test_a_console_tells_the_keys_of_its_last_boot() -> None:
    """cloud-init prints keys and fingerprints; an image that was started again prints them again."""
    first, last = (CONSOLE.format(key=k, print=k.fingerprint) for k in (A, B))

    assert frozenset() == fingerprints_in("nothing of it")
    assert {A.fingerprint} == fingerprints_in(first)
    assert {B.fingerprint} == fingerprints_in(first + last)


@given(st.text(alphabet=st.sampled_from("-BEGINSHOKYFRPT \nabc/+=:256"), max_size=400), st.integers(0, len(CONSOLE)))
def test_no_console_makes_a_stranger_s_key_believed(noise: str, cut: int) -> None:
    """Cut anywhere or full of noise, it vouches for the key that was printed there or for none."""
    text = CONSOLE.format(key=A, print=A.fingerprint)

    assert fingerprints_in(noise + text[:cut] + noise) <= {A.fingerprint}


def test_a_host_is_known_by_its_hashed_name_and_port(tmp_path: Path) -> None:
    """As Debian's ssh writes it; a revoked key is none."""
    file = tmp_path / "known_hosts"
    file.write_text(f"h {A}\n[h]:2222 {B}\n@revoked h {RSA}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], check=True, capture_output=True, timeout=PATIENCE_S)

    assert ({A}, {B}, set()) == tuple(keys.known_in(file, a, p) for a, p in (("h", 22), ("h", 2222), ("x", 22)))


def test_hosts_come_to_those_that_are_there() -> None:
    """The leader stays first, slots that were given stay, a host named again is not there twice."""
    there = [NamedHost(address="localhost", slots=4), NamedHost(address="10.0.0.2", slots=8)]
    all_of_them = with_new_members(there, named(["10.0.0.[2-3],gpu7"]), None)

    assert ["localhost", "10.0.0.2", "10.0.0.3", "gpu7"] == [m.address for m in all_of_them]
    assert [4, 8, None, None] == [m.slots for m in all_of_them]
    assert ["localhost", "b"] == [m.address for m in with_new_members([], ["b", "localhost"], None)]
    with pytest.raises(ConfigError, match="no host is named"):
        with_new_members([], [], None)
    for word in ("@all", "3", "a b", "-oProxyCommand=x"):
        with pytest.raises(ConfigError, match="is not an address"):
            named([word])


def a_host(address: str, gpus: int | None = 0) -> JoiningHost:
    """A host that has nothing of ours yet."""
    return JoiningHost(
        address=address,
        user="ubuntu",
        home="/home/ubuntu",
        gpus=gpus,
        may_be_root=True,
        has_project=False,
        has_runtime=False,
    )


def test_the_hostfile_has_private_addresses_and_gpus() -> None:
    """What hosts call themselves, not what they are called from here; one that has two names is told."""
    members = [NamedHost(address="203.0.113.5"), NamedHost(address="b", slots=2), NamedHost(address="c")]
    seen = {"203.0.113.5": a_host("10.0.0.1", gpus=8), "b": a_host("10.0.0.2", gpus=8), "c": a_host("10.0.0.3")}

    assert [("10.0.0.1", 8), ("10.0.0.2", 2), ("10.0.0.3", 1)] == [
        (h.address, h.slots) for h in hosts_of(members, seen)
    ]
    with pytest.raises(ConfigError, match=r"c is a host that is named already: its own address is 10.0.0.2"):
        hosts_of(members, {**seen, "c": a_host("10.0.0.2")})


@pytest.mark.parametrize("before", ["", 'notify = "/bin/tell"\nshared = "/old"\n\n# mine\n[ssh]\nkey = "k"\n'])
def test_the_files_are_what_every_task_reads(tmp_path: Path, before: str) -> None:
    """Also where a cluster.toml is there already, of which all else stays; and the same again changes nothing."""
    folder = tmp_path / "plain"
    folder.mkdir()
    if before:
        (folder / "cluster.toml").write_text(before)
    asked = request_of(folder, ("a",), name="", slots=0, access=SshSettings(user="ubuntu"), shared="", nfs=False)
    hosts = (Host(rank=0, address="10.0.0.1", slots=8), Host(rank=1, address="10.0.0.2", slots=8))
    joined = Joined(
        cluster=load_cluster_of(asked.name, hosts, folder, asked.access), seen={}, known_hosts="10.0.0.1 k\n"
    )
    for _ in range(2):
        for target in targets(joined):
            target.path.write_text(target.text)
    loaded = load_cluster(str(folder))

    assert ("plain", hosts, "/home/ubuntu/jobs", False) == (loaded.name, loaded.hosts, loaded.shared, loaded.is_shared)
    assert (folder / "known_hosts", "ubuntu", 2222) == (
        loaded.access.known_hosts,
        loaded.access.user,
        loaded.access.port,
    )
    if before:
        assert "# mine" in (folder / "cluster.toml").read_text()
        assert "/bin/tell" == loaded.notify
        again = request_of(folder, (), name="", slots=0, access=SshSettings(), shared="", nfs=False)
        assert ("", Path(folder / "k")) == (again.shared, again.access.key), "no folder is shared: none is asked for"


@pytest.mark.parametrize(
    ("named_as", "gateway", "key"),
    [
        (("10.0.0.1", "10.0.0.2"), None, "k"),  # a laptop in the hosts' own network
        (("203.0.113.5", "203.0.113.6"), "203.0.113.5", "k"),  # by public addresses: the others are behind the leader
        (("localhost", "10.0.0.2"), None, ".ssh/dlami-cluster/plain"),  # the leader: by the cluster's own key
    ],
)
def test_tasks_reach_the_hosts_as_they_can_be_reached_from_here(
    tmp_path: Path, named_as: tuple[str, str], gateway: str | None, key: str
) -> None:
    """The hostfile has the hosts' own addresses; only the leader's may have to be another from here."""
    shown = {a: ProvenKeys(address=a, keys=(A,), proof=Proof.KNOWN) for a in named_as}
    gathered = Gathered(
        members=tuple(NamedHost(address=a) for a in named_as), shown=shown, consoles=Consoles(fingerprints={})
    )
    request = JoinRequest(words=named_as, name="plain", access=SshSettings(key=Path("k")))
    hosts = tuple(Host(rank=n, address=f"10.0.0.{n + 1}", slots=1) for n in range(2))
    access = access_from_here(request, gathered, hosts, a_host("10.0.0.1"), tmp_path)

    assert (gateway, "ubuntu", tmp_path / "known_hosts") == (access.gateway, access.user, access.known_hosts)
    assert str(access.key).endswith(key)


def load_cluster_of(name: str, hosts: tuple[Host, ...], folder: Path, access: SshSettings) -> object:
    """A cluster as `join` makes one."""
    from dataclasses import replace

    from cluster.inventory import Cluster

    access = replace(access, port=2222, known_hosts=folder / "known_hosts")
    return Cluster(
        name=name, hosts=hosts, folder=folder, shared="/home/ubuntu/jobs", project="/p", access=access, is_shared=False
    )


def test_a_stack_s_folder_is_left_alone(tmp_path: Path) -> None:
    """A stack has its own way to write its hosts."""
    (tmp_path / "cluster.toml").write_text("[nodes]\nworkers = 1\n")
    with pytest.raises(ConfigError, match="describes a stack: join hosts in another folder"):
        request_of(tmp_path, (), name="x", slots=0, access=SshSettings(), shared="", nfs=False)


def test_a_host_is_made_part_and_the_same_again_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is the user's own stays: keys, settings, modes; a file without a newline at its end, too."""
    monkeypatch.setenv("HOME", str(tmp_path))
    ssh = tmp_path / ".ssh"
    ssh.mkdir(mode=0o700)
    (ssh / "authorized_keys").write_text("ssh-ed25519 MINE me")
    (ssh / "config").write_text("Host x\n    User y\n")
    (ssh / "config").chmod(0o644)
    private, public = member.key_pair("plain")
    given = ("plain", private, public, "10.0.0.1 k\n", ssh_config("plain", (), "ubuntu", 22))
    old = os.umask(0o077)
    try:
        changed = member.join(*given)
        again = member.join(*given)
    finally:
        os.umask(old)

    assert (private, public) == member.key_pair("plain")
    assert ({"plain.known_hosts", "plain.conf", "authorized_keys", "config"}, []) == (set(changed), again)
    assert ["ssh-ed25519 MINE me", public] == (ssh / "authorized_keys").read_text().splitlines()
    assert f"{member.INCLUDE}\nHost x\n    User y\n" == (ssh / "config").read_text()
    assert (0o644, 0o600) == tuple(p.stat().st_mode & 0o777 for p in (ssh / "config", ssh / "dlami-cluster/plain"))
    assert {"plain", "plain.pub", "plain.known_hosts", "plain.conf"} == {
        p.name for p in (ssh / "dlami-cluster").iterdir()
    }


def test_any_number_of_hosts_are_words_of_the_task() -> None:
    """Between options and after them; what follows is another task, and a value is no host."""
    script = (
        "import sys; from dlami import invoke_words; from dlami.collection import ns;"
        "p = invoke_words.TaskParser(contexts=ns.to_contexts());"
        "print([(c.name, c.as_kwargs.get('host'), c.as_kwargs.get('slots')) for c in p.parse_argv(sys.argv[1:])])"
    )
    words = ["hosts.join", "a", "--slots", "2", "b,c", "--yes", "d", "hosts.list"]
    done = subprocess.run(
        [sys.executable, "-c", script, *words], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S
    )

    assert "[('hosts.join', ['a', 'b,c', 'd'], 2), ('hosts.list', None, None)]\n" == done.stdout, done.stderr


def test_a_folder_is_served_and_mounted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What exportfs and mount are given, and what they need at each boot; no kernel's NFS server runs in a lab."""
    told: list[tuple[str, ...]] = []
    files: dict[str, str] = {"/proc/self/mounts": "", "/etc/fstab": "# mine\n"}
    monkeypatch.setattr(nfs, "_said", lambda *words, timeout_s: told.append(words) or "")
    monkeypatch.setattr(nfs, "_needs", lambda program: told.append((program,)))
    monkeypatch.setattr(nfs, "read", lambda path: files.get(path, ""))
    monkeypatch.setattr(
        nfs, "write", lambda path, text, mode: files.get(path) != text and not files.update({path: text})
    )
    monkeypatch.setattr(nfs.os, "makedirs", lambda *_, **__: None)
    folder = str(tmp_path / "served")
    Path(folder).mkdir()
    for _ in range(2):
        nfs.serve("plain", folder, "root", ["10.0.0.2", "10.0.0.3"])
    line = f"{folder} " + " ".join(f"10.0.0.{n}(rw,sync,no_subtree_check,no_root_squash)" for n in (2, 3))
    assert f"{line}\n" == files["/etc/exports.d/dlami-cluster-plain.exports"]
    assert ("exportfs", "-r") in told
    assert 0o1777 == Path(folder).stat().st_mode & 0o7777
    assert 0o1777 == Path(folder, "jobs").stat().st_mode & 0o7777, "what all users write to is there"

    folder = str(tmp_path / "mounted")
    Path(folder).mkdir()
    assert "" == nfs.looked_at(folder, "10.0.0.1")
    assert f"{folder} is mounted from 10.0.0.1" == nfs.mount(folder, "10.0.0.1")
    row = f"10.0.0.1:{folder} {folder} nfs4 nfsvers=4.2,hard,timeo=600,retrans=2,_netdev,nofail 0 0"
    assert f"# mine\n{row}\n" == files["/etc/fstab"]
    files["/proc/self/mounts"] = f"10.0.0.1:{folder} {folder} nfs4 rw 0 0\n"
    assert f"{folder} was mounted already" == nfs.mount(folder, "10.0.0.1")
    files["/proc/self/mounts"] = f"10.0.0.9:/x {folder} nfs4 rw 0 0\n"
    with pytest.raises(nfs.NfsError, match=r"10.0.0.9:/x is mounted on"):
        nfs.mount(folder, "10.0.0.1")
    files["/proc/self/mounts"] = ""
    (Path(folder) / "own").write_text("")
    with pytest.raises(nfs.NfsError, match="holds files of this host"):
        nfs.mount(folder, "10.0.0.1")


def test_no_home_and_no_folder_of_the_system_is_given_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its name or the link to it: sshd lets nobody in by a key whose home others may write."""
    home, link, system = tmp_path / "home", tmp_path / "link", tmp_path / "system"
    home.mkdir(mode=0o750)
    link.symlink_to(home)
    system.symlink_to("/usr/share")
    for acts in ("_said", "_needs", "write"):  # this machine's, if it came to that
        monkeypatch.setattr(nfs, acts, lambda *_, **__: pytest.fail("it was given away"))
    me = pwd.struct_passwd(("me", "x", 1, 1, "", str(home), "/bin/sh"))
    monkeypatch.setattr(own_folders.pwd, "getpwall", lambda: [me])
    for folder in (home, link):
        with pytest.raises(nfs.NfsError, match="is the home of me: choose another with --shared, one inside"):
            nfs.serve("plain", str(folder), getpass.getuser(), ["10.0.0.2"])
        with pytest.raises(nfs.NfsError, match="is the home of me"):
            nfs.looked_at(str(folder), "10.0.0.1")
    with pytest.raises(nfs.NfsError, match="system is a folder of the system"):
        nfs.serve("plain", str(system), getpass.getuser(), ["10.0.0.2"])

    assert 0o750 == home.stat().st_mode & 0o7777
    assert "" == own_folders.why_not(str(home / "shared"))


@pytest.mark.parametrize("folder", ["/", "//", "/home", "/home/", "/srv/../etc", "/usr/share/x", "/root", "/tmp/."])
def test_a_folder_of_the_system_is_refused_by_its_name(tmp_path: Path, folder: str) -> None:
    """Before any host is reached."""
    with pytest.raises(ConfigError, match="is a folder of the system: name one to be made"):
        request_of(tmp_path, ("a",), name="x", slots=0, access=SshSettings(), shared=folder, nfs=True)


def test_a_folder_to_be_served_is_written_as_mount_lists_it(tmp_path: Path) -> None:
    """One that was mounted is found again; /etc/fstab and exports have no place for a space."""
    for folder in ("/srv/a", "/srv/a/", "//srv/./a"):
        asked = request_of(tmp_path, ("a",), name="x", slots=0, access=SshSettings(), shared=folder, nfs=True)
        assert "/srv/a" == asked.shared
    with pytest.raises(ConfigError, match="no space can stand"):
        request_of(tmp_path, ("a",), name="x", slots=0, access=SshSettings(), shared="/srv/a b", nfs=True)


def test_without_credentials_or_a_region_ec2_is_not_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A sentence, and the person compares."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_DEFAULT_REGION", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert "no AWS credentials" in consoles(["10.0.0.2"]).why_not
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    assert "no AWS region" in consoles(["10.0.0.2"]).why_not
