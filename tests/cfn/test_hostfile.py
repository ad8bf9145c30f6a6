"""The way from this machine to the nodes: which address, whose key, and what is said where it needs more than we have."""

import datetime
import socket
from collections.abc import Iterator
from dataclasses import replace as with_
from pathlib import Path

import pytest

from cfn import create, hostfile, in_stack, plan
from cfn.aws import Aws
from cfn.hosts import GroupMember
from cluster.clusterfile import text
from cluster.clusterfile.model import Access, ClusterFile
from cluster.inventory import Tunnel, load_cluster
from dlami.tasks import stack_actions
from lab.aws import FakeAws

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAfakefakefakefakefakefakefakefakefakefakefake"


def member(name: str, host_key: str = KEY, role: str = "worker") -> GroupMember:
    return GroupMember(
        instance_id=f"i-{name}",
        role=role,
        address=name,
        launched=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
        lifecycle="InService",
        health="Healthy",
        boot="ready",
        host_key=host_key,
    )


@pytest.fixture
def listening() -> Iterator[int]:
    """A port of 127.0.0.2 that answers."""
    with socket.create_server(("127.0.0.2", 0)) as server:
        yield server.getsockname()[1]


def outputs(private: str, mode: str = "ssm") -> dict[str, str]:
    address = private if mode == "ssm" else "203.0.113.5"
    return {"MasterPrivateAddress": private, "MasterAddress": address, "AccessMode": mode}


def test_the_way_in_is_one_that_leads_there(listening: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An open port: the public address. None: the private address where that answers, else through Session Manager."""
    master = [member("0a", role="master")]
    assert "" == hostfile.way_in(outputs("127.0.0.2"), master, listening)  # this machine is the master
    monkeypatch.setattr(hostfile, "is_the_master", lambda _: False)
    assert "203.0.113.5" == hostfile.way_in(outputs("127.0.0.2", "ssh"), master, 1)
    assert "127.0.0.2" == hostfile.way_in(outputs("127.0.0.2"), master, listening)
    assert "i-0a" == hostfile.way_in(outputs("127.0.0.2"), master, 1)


def test_without_an_open_port_the_operator_is_told_what_ssh_needs(
    fake: FakeAws,
    file: ClusterFile,
    account: Aws,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The gateway is an instance id, its key is known under that name, and what leads there is said."""
    closed = with_(file, access=Access(mode="ssm"))
    master = create.create(account, plan.make(account, closed), lambda _: None)[0]
    monkeypatch.setattr(hostfile, "answers", lambda *_: False)
    path = tmp_path / "cluster.toml"
    text.write(path, text.render(in_stack.values(closed)))

    stack_actions.write_hosts(str(path), "stack", force=False, dry_run=False)

    said = capsys.readouterr().out
    assert "tasks reach the master through Session Manager, by the AWS CLI and its Session Manager plugin" in said
    access = load_cluster(str(tmp_path)).access
    assert (master.instance_id, tmp_path / "known_hosts") == (access.gateway, access.known_hosts)
    assert Tunnel(mode="ssm", region=closed.region, lends_key=True) == access.tunnel
    assert f"{master.instance_id} {master.host_key}" in (tmp_path / "known_hosts").read_text()


def test_through_an_endpoint_the_master_is_known_and_our_own_key_is_lent(
    fake: FakeAws, file: ClusterFile, account: Aws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stack has the endpoint; hosts.write names the instance, and `inv ssh` is an ssh to it through the CLI."""
    closed = with_(file, access=Access(mode="eic"))
    master = create.create(account, plan.make(account, closed), lambda _: None)[0]
    monkeypatch.setattr(hostfile, "answers", lambda *_: False)
    monkeypatch.setattr(hostfile.shutil, "which", lambda program: None if program.startswith("session") else "/x/aws")
    path = tmp_path / "cluster.toml"
    text.write(path, text.render(in_stack.values(closed)))

    stack_actions.write_hosts(str(path), "stack", force=False, dry_run=False)
    words = hostfile.ssh_command(account, closed, tmp_path)

    access = load_cluster(str(tmp_path)).access
    assert (master.instance_id, "eic", True) == (access.gateway, access.tunnel.mode, access.tunnel.lends_key)
    assert master.instance_id == words[-1]
    proxy = next(word for word in words if word.startswith("ProxyCommand="))
    assert f"open-tunnel --instance-id {master.instance_id} --remote-port %p --region {closed.region}" in proxy
    assert f"{master.instance_id} {master.host_key}\n" in (tmp_path / ".known_hosts.stack").read_text()
    assert any(word.endswith('/lent-key"') for word in words)


@pytest.mark.parametrize(
    "told",
    [
        "",
        "ssh-ed25519",
        f"{KEY}\n10.0.0.1 {KEY}",
        f"{KEY} x",
        f"10.0.0.1 {KEY}",
        "@cert-authority * ssh-rsa AAAA",
        "* " + KEY,
    ],
)
def test_a_node_vouches_for_itself_alone(told: str) -> None:
    """Its tag is its own word: what is not one key, or names another host, is not taken into known_hosts."""
    found = hostfile.known_hosts([member("10.0.0.1", role="master"), member("10.0.0.2", told)], "203.0.113.5")
    assert f"10.0.0.1 {KEY}\n203.0.113.5 {KEY}\n" == found


def test_a_worker_is_never_known_as_the_master() -> None:
    """Not even where the master has told no key yet."""
    assert f"10.0.0.2 {KEY}\n" == hostfile.known_hosts([member("10.0.0.1", ""), member("10.0.0.2")], "203.0.113.5")
