"""The real first-boot script on lab hosts, one per instance of the fake: keys, mounts, reports and signals for real."""

import json
import re
import subprocess
import sys
from dataclasses import replace as with_
from pathlib import Path

import pytest

from cfn import create, plan, stack, update
from cfn import hosts as members
from cfn.aws import Aws
from cfn.clusterfile.fields import Access, ClusterFile, Network, Nodes, Ssh
from cfn.template import firstboot
from cluster.inventory import ROOT
from cluster.lab import network
from cluster.lab.aws.driver import LabDriver
from cluster.lab.record import SHARED


@pytest.fixture
def file(driver: LabDriver) -> ClusterFile:
    """1 + 2 small nodes in the lab's own network."""
    base = list(network.IPv4Network(driver.lab.network).subnets(new_prefix=25))
    return ClusterFile(
        name="boot",
        shared=SHARED,
        project=str(ROOT),
        ssh=Ssh(user="root"),
        access=Access(ssh_from="203.0.113.7/32"),
        nodes=Nodes(instance_type="g5.xlarge", workers=2, boot_minutes=20),
        network=Network(cidr=driver.lab.network, public_cidr=str(base[0]), private_cidr=str(base[1])),
    )


def on(driver: LabDriver, host: members.Member, command: str) -> subprocess.CompletedProcess[str]:
    """A command on a host, from this machine."""
    lab = driver.lab
    return subprocess.run(
        [
            "ssh",
            "-i",
            str(lab.key),
            "-o",
            f"UserKnownHostsFile={lab.folder}/known_hosts",
            "-o",
            "IdentitiesOnly=yes",
            "-o",
            "BatchMode=yes",
            f"root@{host.address}",
            command,
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_nodes_boot_trust_each_other_and_are_replaced_in_place(
    driver: LabDriver, file: ClusterFile, account: Aws
) -> None:
    """From stack.create to stack.delete on real hosts: every node's report, keys that work, a crash, a successor."""
    told: list[str] = []
    hosts = create.create(account, plan.make(account, file), told.append)
    state = driver.lab.shared / ".dlami-cluster/boot"
    assert [0, 1, 2] == [h.rank for h in hosts]
    for host in hosts:
        report = json.loads((state / f"boot/{host.instance_id}.json").read_text())
        assert ("ready", host.address) == (report["status"], report["address"])
        assert [
            "identity",
            "mount-shared",
            "mount-fsx",
            "host-key",
            "cluster-key",
            "sshd",
            "project",
            "runtime",
            "cluster-file",
        ] == [s["step"] for s in report["steps"]]
        assert host.host_key in (state / "known_hosts").read_text()

    # The cluster key and the published host keys alone: no agent, no other file of the lab.
    only = f"ssh -F /etc/ssh/ssh_config -o BatchMode=yes -o UserKnownHostsFile=/dev/null -i /root/.ssh/dlami-cluster -o IdentitiesOnly=yes {hosts[2].address} hostname"
    answer = on(driver, hosts[0], only)
    assert answer.returncode == 0, answer.stderr
    assert driver.hosts[hosts[2].instance_id].name == answer.stdout.strip()

    driver.crash(hosts[1].instance_id)
    after = (
        update.replace(account, file, "1", told.append)
        if any(m.instance_id == hosts[1].instance_id for m in members.read(account, stack.outputs(account, "boot")))
        else _whole(account, file)
    )
    assert [hosts[0].instance_id, hosts[2].instance_id] == [after[0].instance_id, after[2].instance_id]
    assert (1, True) == (after[1].rank, after[1].instance_id != hosts[1].instance_id)

    more = with_(file, nodes=with_(file.nodes, workers=3))
    grown = update.execute(account, update.prepare(account, more), more, told.append)
    assert [h.instance_id for h in after] == [h.instance_id for h in grown[:3]]
    assert ["SharedFileSystem"] == list(create.delete(account, more, told.append))
    assert [] == driver.errors


def _whole(account: Aws, file: ClusterFile) -> list[members.Member]:
    """The group replaced the dead host before we asked: wait until its successor is ready."""
    from cfn.progress import wait_for

    outputs = stack.outputs(account, file.name)
    assert wait_for(lambda: sum(m.is_usable for m in members.read(account, outputs)) == 3, 120, lambda: None)
    return members.hosts(account, outputs)


@pytest.fixture
def image(tmp_path: Path, request: pytest.FixtureRequest) -> Path | None:
    """An AMI without NFS and without a way to the distribution's archive, for the test that fails there."""
    if "failing_step" not in request.node.name:
        return None
    (tmp_path / "usr/sbin").mkdir(parents=True)
    (tmp_path / "usr/sbin/apt-get").write_text("#!/bin/sh\nexit 100\n")
    (tmp_path / "usr/sbin/apt-get").chmod(0o755)
    return tmp_path


def test_a_failing_step_is_named_with_its_last_line(driver: LabDriver, file: ClusterFile, account: Aws) -> None:
    """A share that cannot be mounted: the script says so to the stack, the tags and the operator."""
    from cfn.stack import StackError

    broken = with_(file, shared="/nowhere", nodes=with_(file.nodes, workers=0))
    with pytest.raises(StackError) as error:
        create.create(account, plan.make(account, broken), lambda _: None)

    assert "MasterNodes" in str(error.value) and "FAILURE signal(s) out of 1" in str(error.value)
    assert "(master): first boot failed mount-shared: mount.nfs4 is missing and nfs-common cannot be" in str(
        error.value
    )


def test_the_script_is_clean() -> None:
    """shellcheck has nothing to say, to what a reader sees and to what is sent."""
    shellcheck = str(Path(sys.executable).parent / "shellcheck")
    for words, text in (([str(ROOT / "scripts/first-boot.sh")], None), (["-s", "bash", "-"], firstboot.body())):
        found = subprocess.run(
            [shellcheck, *words], input=text, capture_output=True, text=True, timeout=60, check=False
        )
        assert (0, "") == (found.returncode, found.stdout)


def test_what_is_sent_is_the_script_without_what_only_a_reader_needs() -> None:
    """No comment line and no indentation of the shell's; the programs within keep theirs."""
    sent = firstboot.body().splitlines()
    assert not [line for line in sent if line.startswith("#")]
    whole = (ROOT / "scripts/first-boot.sh").read_text()
    programs = re.findall(r"<<'PYTHON'\n(.*?)^PYTHON$", whole, re.S | re.M)
    assert 2 == len(programs) and all(p in firstboot.body() for p in programs)
    code = {line.strip() for line in whole.splitlines() if line.strip() and not line.strip().startswith("#")}
    assert code == {line.strip() for line in sent if line.strip()} - {""}
