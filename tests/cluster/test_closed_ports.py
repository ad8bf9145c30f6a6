"""Clusters without an open port: every laptop task through the AWS CLI, with stand-ins for it and for what it asks."""

import contextlib
import dataclasses
import http.server
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import ClusterError
from cluster.hosts import Host
from cluster.inventory import ROOT, Cluster, SshSettings, Tunnel, load_cluster
from cluster.ssh import connections, fanout, proxy
from cluster.ssh.failure import Reason
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from cluster.ssh.options import Route, connect_command, way_to
from lab.record import Lab
from tests import fake_s3
from tests.cluster import aws_programs
from tests.conftest import PATIENCE_S, wait_for

GATEWAY = "i-0aaaaaaaaaaaaaaa0"
PROGRAMS = ("aws", "session-manager-plugin")
PATIENT = Limits(connect_s=60)


class Lending(http.server.BaseHTTPRequestHandler):
    """EC2 Instance Connect: lets a key in for a minute, or answers as one who may not ask. And DescribeInstances."""

    lent: list[tuple[str, str]]
    let_in: Callable[[str, str], None]
    addresses: dict[str, str]
    is_allowed = True

    def do_POST(self) -> None:
        kind, body = type(self), self.rfile.read(int(self.headers["Content-Length"]))
        if "X-Amz-Target" not in self.headers:
            self.reply(200, kind.described(body.decode()), "text/xml")
        elif not kind.is_allowed:
            self.reply(400, json.dumps({"__type": "AccessDeniedException", "message": "not SendSSHPublicKey"}))
        else:
            asked = json.loads(body)
            kind.let_in(kind.addresses[asked["InstanceId"]], asked["SSHPublicKey"])
            kind.lent.append((asked["InstanceId"], asked["InstanceOSUser"]))
            self.reply(200, json.dumps({"RequestId": "0", "Success": True}))

    @classmethod
    def described(cls, asked: str) -> str:
        """The instances whose private address or id is asked for, as EC2 says it."""
        known = {GATEWAY: "", **cls.addresses}
        items = "".join(
            f"<item><instanceId>{name}</instanceId><vpcId>vpc-1</vpcId></item>"
            for name, address in known.items()
            if f"Filter.1.Value.1={address}&" in f"{asked}&" or f"InstanceId.1={name}&" in f"{asked}&"
        )
        return (
            '<DescribeInstancesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><reservationSet><item>'
            f"<instancesSet>{items}</instancesSet></item></reservationSet></DescribeInstancesResponse>"
        )

    def reply(self, code: int, text: str, kind: str = "application/x-amz-json-1.1") -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *words: Any) -> None:
        """Nothing."""


class Laptop:
    """A machine with the stand-ins on its PATH, and a folder for a cluster file."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self._patch = folder, patch
        self.bin = folder / "bin"
        self.bin.mkdir()
        for name in PROGRAMS:
            script = f'#!/bin/sh\nexec "{sys.executable}" -I -S "{aws_programs.__file__}" {name} "$@"\n'
            (self.bin / name).write_text(script)
            (self.bin / name).chmod(0o755)
        for name in ("ssh", "ssh-keygen", "rsync", "sh", "env"):
            if found := shutil.which(name):
                (self.bin / name).symlink_to(found)
        patch.setenv("PATH", str(self.bin))
        patch.setenv("STAND_IN_AWS", str(folder / "world.json"))
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        self.there_is({})

    def there_is(
        self, instances: dict[str, str], *, endpoint: bool = True, version: int = 2, hangs: bool = False
    ) -> None:
        """What AWS has."""
        self.instances = instances
        said = {"instances": instances, "endpoint": endpoint, "version": version, "hangs": hangs}
        (self.folder / "world.json").write_text(json.dumps(said))

    @property
    def sessions(self) -> list[tuple[int, str]]:
        """The pid of each session's program, and the address it led to."""
        log = self.folder / "sessions"
        lines = log.read_text().splitlines() if log.exists() else []
        return [(int(pid), address) for pid, address in map(str.split, lines)]

    def inv(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """A task on the cluster of this folder."""
        given = {**os.environ, "CLUSTER": str(self.folder), "XDG_CACHE_HOME": str(self.folder / "cache")}
        return subprocess.run(
            [sys.executable, "-m", "invoke", *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            env=given,
            timeout=PATIENCE_S,
        )


@pytest.fixture
def laptop(tmp_path: Path) -> Iterator[Laptop]:
    """It, with no connection open before or after. Where a lab is needed too, that comes before it."""
    connections.disconnect()
    with pytest.MonkeyPatch.context() as patch:
        yield Laptop(tmp_path, patch)
    connections.disconnect()


def closed(mode: str, *, lends: bool = False, **more: Any) -> Cluster:
    """A cluster of one host, which is nowhere but behind the CLI."""
    tunnel = Tunnel(mode=mode, region="us-east-1", lends_key=lends)
    return Cluster(
        name="closed",
        hosts=(Host(rank=0, address="10.255.255.1", slots=1),),
        folder=ROOT,
        shared="/shared",
        project=str(ROOT),
        access=SshSettings(user="root", gateway=GATEWAY, tunnel=tunnel, **more),
    )


def refusal(cluster: Cluster) -> Any:
    """Why its master cannot be reached."""
    with Executor(cluster) as reach:
        return reach.run(cluster.hosts, "true", limits=PATIENT)[cluster.master].failure


@pytest.mark.parametrize("missing", PROGRAMS)
def test_what_is_not_installed_is_named_with_what_to_install(laptop: Laptop, missing: str) -> None:
    """Before anything is asked of AWS."""
    laptop.there_is({GATEWAY: "127.0.0.1"})
    (laptop.bin / missing).unlink()

    failure = refusal(closed("ssm"))

    assert Reason.NO_TUNNEL is failure.reason
    assert f"this machine has no `{missing}`" in str(failure)
    assert "install the AWS CLI (version 2) and, for access.mode 'ssm', its Session Manager plugin" in str(failure)
    assert [] == laptop.sessions


def test_what_the_cli_refuses_is_said_in_its_words_with_what_to_do(laptop: Laptop) -> None:
    """And not as a connection that was closed, which would be tried again until the time is over."""
    said = "An error occurred (TargetNotConnected) when calling the StartSession operation: i-0aaaaaaaaaaaaaaa0 is not"
    assert f"{said} connected: does it run, and may its role" in str(refusal(closed("ssm")))
    laptop.there_is({GATEWAY: "127.0.0.1"}, endpoint=False)
    assert "no available instance connect endpoints: make one in its VPC" in str(refusal(closed("eic")))
    laptop.there_is({GATEWAY: "127.0.0.1"}, version=1)
    assert "`aws` is version 1, which has no open-tunnel: install version 2" in str(refusal(closed("eic")))


def test_a_cli_that_hangs_is_given_up_with_what_to_look_at(laptop: Laptop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with a word about a port that is not open anyway; its program is ended."""
    laptop.there_is({GATEWAY: "127.0.0.1"}, hangs=True)
    monkeypatch.setattr(fanout, "_TUNNEL_S", 0.5)
    cluster = closed("eic")
    with Executor(cluster) as reach:
        failure = reach.run(cluster.hosts, "true", limits=Limits(connect_s=0.5))[cluster.master].failure

    assert f"the AWS CLI led to no ssh within 0.5 s: does {GATEWAY} run, and its sshd?" == str(failure)
    here = str(laptop.folder / "world.json").encode()

    def is_left() -> bool:
        for environment in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):  # another user's, or gone
                if here in environment.read_bytes():
                    return True
        return False

    wait_for(lambda: not is_left(), 60, "the CLI is ended")


@pytest.mark.parametrize("missing", ["ssh", "ssh-keygen"])
def test_a_machine_without_ssh_is_told_so(laptop: Laptop, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also before the way through a gateway, and where a key would have to be made."""
    (laptop.bin / missing).unlink()
    with tempfile.TemporaryDirectory(prefix="dl-", dir="/tmp") as short:
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        said = str(refusal(closed("eic", lends=True)))

    assert "no ssh could be started on this machine" in said
    assert f"'{missing}'" in said


def test_without_credentials_nothing_waits(laptop: Laptop, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence, also where a gateway is in front."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    cluster = closed("ssm")
    behind = Host(rank=1, address="10.255.255.2", slots=1)
    with Executor(cluster) as reach:
        failure = reach.run([behind], "true", limits=PATIENT)[behind].failure

    assert f"its gateway {GATEWAY}: Unable to locate credentials" in str(failure)


def test_a_worker_s_key_is_lent_before_the_gateway_passes_on(tmp_path: Path, laptop: Laptop) -> None:
    """What ssh is told: one command that lends and becomes the way; a path with a percent sign is itself."""
    access = closed("eic", lends=True, key=tmp_path / "50%").access
    worker = Host(rank=1, address="10.0.0.5", slots=1)

    def proxy_of(way: Route) -> str:
        return next(word for word in connect_command(way, 5) if word.startswith("ProxyCommand="))

    of_master, of_worker = proxy_of(way_to(closed("eic").master, access)), proxy_of(way_to(worker, access))
    assert f'"instance": "{GATEWAY}", "user": "%r"}}' in of_master
    assert of_master.endswith(
        f"aws ec2-instance-connect open-tunnel --instance-id {GATEWAY} --remote-port %p --region us-east-1"
    )
    assert f'"instance": "{GATEWAY}", "address": "10.0.0.5", "user": "%r"}}' in of_worker
    assert of_worker.endswith(f"-W '[%h]:%p' {GATEWAY}")
    assert f'"key": "{tmp_path}/50%%"' in of_worker
    plain = proxy_of(way_to(worker, closed("ssm").access))
    assert plain.startswith("ProxyCommand=ssh -o ControlPath="), "nothing is lent, so ssh goes through by itself"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('region = "us-east-1"\n[ssh]\ngateway = "i-0aaaaaaaaaaaaaaa0"\n[access]\nmode = "ssm"', ("ssm", True)),
        (
            'region = "us-east-1"\n[ssh]\ngateway = "i-0aaaaaaaaaaaaaaa0"\n[access]\nmode = "ssm"\nkey_pair = "mine"',
            ("ssm", False),
        ),
        (
            'region = "us-east-1"\n[ssh]\ngateway = "i-0aaaaaaaaaaaaaaa0"\n[access]\nmode = "eic"\nkey_pair = "mine"',
            ("eic", True),
        ),
        ('region = "us-east-1"\n[ssh]\ngateway = "10.0.0.1"\n[access]\nmode = "ssm"', None),  # a VPN
        ('region = "us-east-1"\n[access]\nmode = "eic"', None),  # on the master itself
        (
            '[ssh]\ngateway = "i-0aaaaaaaaaaaaaaa0"\n[access]\nmode = "ssm"',
            "region: '' is no region, and access.mode 'ssm'",
        ),
        ('region = "us-east-1"\n[access]\nmode = "vpn"', "access.mode: 'vpn' is unknown; choose 'ssh', 'ssm' or 'eic'"),
        ('region = "us-east-1"\n[ssh]\nport = 2222\n[access]\nmode = "eic"', "leads to port 22; use mode 'ssm'"),
    ],
)
def test_the_cluster_file_says_how_the_gateway_is_reached(tmp_path: Path, text: str, expected: Any) -> None:
    """Only an instance's id needs the CLI; which key is lent follows from whose key the nodes let in."""
    (tmp_path / "hosts").write_text("10.0.0.1 slots=1\n")
    (tmp_path / "cluster.toml").write_text(text)
    if isinstance(expected, str):
        with pytest.raises(ClusterError, match=expected):
            load_cluster(str(tmp_path))
        return
    tunnel = load_cluster(str(tmp_path)).access.tunnel
    assert expected == (tunnel and (tunnel.mode, tunnel.lends_key))


@pytest.fixture
def lending(cluster: Cluster, reach: Executor, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Lending]]:
    """EC2 Instance Connect in front of the lab: sshd itself forgets a key after a minute."""
    keys, kept = "/root/.ssh/authorized_keys", "/root/.ssh/authorized_keys.kept"
    reach.run(cluster.hosts, f"cp {keys} {kept}").check()

    def let_in(address: str, key: str) -> None:
        line = """printf 'expiry-time="%s" %s\\n' "$(date -u -d +60sec +%Y%m%d%H%M%SZ)" "$(cat)" """
        host = next(h for h in cluster.hosts if h.address == address)
        reach.run([host], f"{line} >>{keys}", stdin=key.encode()).check()

    class Own(Lending):
        """Of this test."""

    Own.lent = []
    Own.let_in = staticmethod(let_in)
    Own.addresses = {f"i-0aaaaaaaaaaaaaaa{h.rank}": h.address for h in cluster.hosts}
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Own)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for service in ("EC2", "EC2_INSTANCE_CONNECT"):
        monkeypatch.setenv(f"AWS_ENDPOINT_URL_{service}", f"http://127.0.0.1:{server.server_port}")
    yield Own
    server.shutdown()
    server.server_close()
    reach.run(cluster.hosts, f"mv {kept} {keys}").check()


@pytest.fixture
def bucket(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket that the lab's hosts reach, with one object below `in/`."""
    import boto3

    with fake_s3.serving(lab.bridge_address) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "testing")
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="bucket")
        client.put_object(Bucket="bucket", Key="in/part", Body=b"from S3")
        yield "bucket"


def write_cluster(laptop: Laptop, cluster: Cluster, mode: str, ssh: Sequence[str] = (), access: str = "") -> None:
    """The lab's cluster as one without an open port; its master is known as an instance too."""
    assert cluster.access.known_hosts
    known = cluster.access.known_hosts.read_text()
    key = next(line.split(" ", 1)[1] for line in known.splitlines() if line.startswith(f"{cluster.master.address},"))
    (laptop.folder / "known_hosts").write_text(f"{known}{GATEWAY} {key}\n")
    (laptop.folder / "hosts").write_text("".join(f"{h.address} slots={h.slots}\n" for h in cluster.hosts))
    lines = ['user = "root"', 'known_hosts = "known_hosts"', f'gateway = "{GATEWAY}"', *ssh]
    (laptop.folder / "cluster.toml").write_text(
        f'name = "closed"\nregion = "us-east-1"\nshared = "{cluster.shared}"\nproject = "{cluster.project}"\n'
        f'[ssh]\n{chr(10).join(lines)}\n[access]\nmode = "{mode}"\n{access}\n'
    )
    laptop.there_is({f"i-0aaaaaaaaaaaaaaa{h.rank}": h.address for h in cluster.hosts})


def test_every_task_of_a_laptop_works_through_session_manager(
    lab: Lab, cluster: Cluster, reach: Executor, bucket: str, laptop: Laptop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them over one session, that has time to begin; when the connections end, so does its program."""
    monkeypatch.setattr(fanout, "_TUNNEL_S", PATIENCE_S)
    write_cluster(laptop, cluster, "ssm", [f'key = "{lab.key}"'], f'public_key = "ssh-ed25519 {"A" * 68}"')
    (laptop.folder / "file").write_text("from the laptop")

    with Executor(load_cluster(str(laptop.folder))) as through:
        through.connect(cluster.hosts[:1], Limits(connect_s=0.01)).check()
    ran = laptop.inv("run", "--", "hostname")
    copied = laptop.inv("copy", str(laptop.folder / "file"), "/root/here/")
    staged = laptop.inv(
        "stage", f"s3://{bucket}/in", "/root/staged", "--env", "AWS_ACCESS_KEY_ID", "--env", "AWS_SECRET_ACCESS_KEY"
    )
    logged_in = laptop.inv("login", "1", "--", "hostname; exit 7")
    healthy = json.loads(laptop.inv("health", "--json").stdout)
    jobs = laptop.inv("jobs.list", "--json")
    there = reach.run(cluster.hosts, "cat /root/here/file /root/staged/part; rm -r /root/here /root/staged").check()

    assert [0, 0, 0] == [ran.returncode, copied.returncode, staged.returncode], copied.stderr + staged.stderr
    assert all(h.address in ran.stdout or f"{cluster.name}-{h.rank}" in ran.stdout for h in cluster.hosts)
    assert {"from the laptopfrom S3"} == {r.text for r in there.values()}
    assert (7, f"{cluster.name}-1\n") == (logged_in.returncode, logged_in.stdout)
    assert {h.address for h in cluster.hosts} == {h["host"] for h in healthy["hosts"]}
    assert (0, []) == (jobs.returncode, json.loads(jobs.stdout))
    assert [cluster.master.address] == [address for _, address in laptop.sessions]
    laptop.inv("disconnect")
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid, _ in laptop.sessions), 60, "its session ends")


def test_a_key_is_lent_for_each_connection_through_the_endpoint(
    cluster: Cluster, lending: type[Lending], laptop: Laptop
) -> None:
    """Nobody has a key there; ours is let in for a minute, by instance and user, and again for the next connection."""
    write_cluster(laptop, dataclasses.replace(cluster, hosts=cluster.hosts[:3]), "eic")
    closed_one = load_cluster(str(laptop.folder))
    (laptop.folder / "file").write_text("from the laptop")
    every = [(f"i-0aaaaaaaaaaaaaaa{h.rank}", "root") for h in closed_one.hosts]

    with Executor(closed_one) as reach:
        first = reach.run(closed_one.hosts, "hostname", limits=PATIENT).check()
        again = reach.run(closed_one.hosts, "hostname", limits=PATIENT).check()
        assert every == sorted(lending.lent), "once for each connection, and none for those that are open"
        copied = laptop.inv("copy", str(laptop.folder / "file"), "/root/lent")
        logged_in = laptop.inv("login", "2", "--", "cat /root/lent; rm /root/lent")
        connections.disconnect([way_to(h, closed_one.access) for h in closed_one.hosts])
        reach.run(closed_one.hosts, "rm -f /root/lent", limits=PATIENT).check()

    assert [r.text for r in first.values()] == [r.text for r in again.values()]
    assert 0 == copied.returncode, copied.stderr
    assert (0, "from the laptop") == (logged_in.returncode, logged_in.stdout), logged_in.stderr
    assert sorted([*every, *every, every[2]]) == sorted(lending.lent), "and one for the login's own"


def test_who_may_not_lend_a_key_is_told_so(cluster: Cluster, lending: type[Lending], laptop: Laptop) -> None:
    """With what AWS said of it, not as a refused key."""
    write_cluster(laptop, cluster, "eic")
    lending.is_allowed = False

    failure = refusal(load_cluster(str(laptop.folder)))

    assert f"our key was not lent to {GATEWAY}: An error occurred (AccessDeniedException)" in str(failure)


def test_a_master_that_shows_another_key_is_not_believed(lab: Lab, cluster: Cluster, laptop: Laptop) -> None:
    """The tunnel vouches for nobody: the key is compared as on any other way."""
    write_cluster(laptop, cluster, "ssm", [f'key = "{lab.key}"'], 'key_pair = "mine"')
    laptop.there_is({GATEWAY: cluster.hosts[3].address})

    assert Reason.CHANGED_HOST is refusal(load_cluster(str(laptop.folder))).reason


@pytest.mark.parametrize("networks", [("vpc-2", "vpc-1"), ("vpc-1",), ("vpc-2",), ()])
def test_a_key_is_lent_in_the_gateway_s_network_alone(networks: tuple[str, ...]) -> None:
    """Private addresses are not unique in an account: an instance elsewhere that has one is a stranger's."""

    class Ec2:
        def describe_instances(self, **asked: Any) -> Any:
            there = [{"InstanceId": f"i-{vpc}", "VpcId": vpc} for vpc in networks]
            found = [{"InstanceId": "i-0a", "VpcId": "vpc-1"}] if "InstanceIds" in asked else there
            return {"Reservations": [{"Instances": [one]} for one in found]}

    if "vpc-1" in networks:
        assert "i-vpc-1" == proxy._instance_at(Ec2(), "10.0.0.5", "i-0a")
        return
    with pytest.raises(RuntimeError, match="only i-vpc-2 in vpc-2" if networks else "no instance that runs"):
        proxy._instance_at(Ec2(), "10.0.0.5", "i-0a")


def test_a_key_s_public_half_is_the_one_beside_it_or_its_own(tmp_path: Path) -> None:
    """In one line; a file that is no key is named, with what to do."""
    key, beside = tmp_path / "key", tmp_path / "key.pub"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    own = beside.read_text().strip()
    assert own == proxy._public_half(key)
    beside.write_text("ssh-ed25519 AAAA another\n")
    assert "ssh-ed25519 AAAA another" == proxy._public_half(key)
    beside.unlink()
    assert own == proxy._public_half(key)
    key.write_text("no key")
    with pytest.raises(RuntimeError, match=f"{key} does not tell its public half: write it to {beside}"):
        proxy._public_half(key)


GATEWAY_FILE = 'region = "us-east-1"\n[ssh]\ngateway = "i-0123456789abcdef0"\n[access]\nmode = "{}"\n{}'


@pytest.mark.parametrize(
    ("mode", "more", "lends_key"),
    [
        ("ssm", "", True),
        ("ssm", 'key_pair = "mine"', False),
        ("ssm", 'public_key = "ssh-ed25519 ' + "A" * 68 + '"', False),
        ("eic", "", True),
        ("eic", 'key_pair = "mine"', True),
    ],
)
def test_a_key_is_lent_where_the_nodes_have_none_of_the_operators(
    tmp_path: Path, mode: str, more: str, lends_key: bool
) -> None:
    """And always where Instance Connect asks for one."""
    (tmp_path / "hosts").write_text("10.0.0.1 slots=1\n")
    (tmp_path / "cluster.toml").write_text(GATEWAY_FILE.format(mode, more))
    tunnel = load_cluster(str(tmp_path)).access.tunnel
    assert tunnel
    assert (mode, "us-east-1", lends_key) == (tunnel.mode, tunnel.region, tunnel.lends_key)
