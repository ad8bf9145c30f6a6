"""First boot as a bare DLAMI takes it: nothing mounted, no project, no runtime; and then the stack's tasks on the master."""

import io
import json
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import replace as with_
from pathlib import Path

import boto3
import packages
import pytest

from cfn import carried, clusterfile, create, plan, stack, update
from cfn.config import Access, ClusterFile, Network, Nodes, Ssh, Storage
from cfn.lab_driver import LabDriver
from cfn.stack import StackError
from cfn.watch import wait_for
from cluster.lab import network
from cluster.lab.record import SHARED

PROJECT = "/opt/dlami-cluster"
# A lab has no NFS and no Lustre server: their helpers bind a folder of the lab, and the first answer does not come.
MOUNT_NFS = f"""#!/bin/sh
[ -e /run/asked ] || {{ touch /run/asked; echo "mount.nfs4: Connection timed out" >&2; exit 32; }}
mount --bind {SHARED} "$2"
"""
MOUNT_LUSTRE = f"""#!/bin/sh
mkdir -p {SHARED}/fast
mount --bind {SHARED}/fast "$2"
"""


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An AMI with mount helpers, whose pip looks in the lab only and whose git finds a repository there."""
    root = tmp_path / "image"
    files = {
        "usr/sbin/mount.nfs4": MOUNT_NFS,
        "usr/sbin/mount.lustre": MOUNT_LUSTRE,
        "root/.config/pip/pip.conf": f"[global]\nno-index = true\nfind-links = {SHARED}/packages\n",
        "etc/gitconfig": f'[url "file://{SHARED}/repository"]\ninsteadOf = https://git.example/\n'
        "[safe]\ndirectory = *\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
        (root / name).chmod(0o755 if "mount" in name else 0o644)
    return root


@pytest.fixture
def file(driver: LabDriver) -> ClusterFile:
    """1 + 1 nodes that must fetch everything; the project is in a bucket."""
    public, private = network.IPv4Network(driver.lab.network).subnets(prefixlen_diff=1)
    boto3.client("s3").create_bucket(Bucket="ours")
    return ClusterFile(
        name="bare",
        shared="/efs",
        project=PROJECT,
        ssh=Ssh(user="root"),
        access=Access(mode="ssm"),
        nodes=Nodes(instance_type="g5.xlarge", workers=1, boot_minutes=20, source="s3://ours/code/project.tar.gz"),
        storage=Storage(s3="s3://ours/code", fsx_gib=1200),
        network=Network(cidr=driver.lab.network, public_cidr=str(public), private_cidr=str(private)),
    )


Shell = Callable[[str, str], "subprocess.CompletedProcess[str]"]


@pytest.fixture
def shell(driver: LabDriver) -> Shell:
    """The project's folder on the master, for somebody who logged in there: the instance's role, no key of AWS's."""

    def run(instance: str, command: str) -> "subprocess.CompletedProcess[str]":
        lab, host = driver.lab, driver.hosts[instance]
        own = f"AWS_ENDPOINT_URL={driver.url} AWS_EC2_METADATA_SERVICE_ENDPOINT={driver.url}/_fake/imds/{instance}"
        options = [f"UserKnownHostsFile={lab.folder}/known_hosts", "BatchMode=yes", "ServerAliveInterval=2"]
        return subprocess.run(
            [
                "ssh",
                *("-i", str(lab.key)),
                *(word for o in options for word in ("-o", o)),
                f"root@{host.address}",
                f"cd {PROJECT} && export PATH=$PWD/.venv/bin:$PATH {own} && {command}",
            ],
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

    return run


def done(answer: "subprocess.CompletedProcess[str]") -> str:
    assert answer.returncode == 0, answer.stderr[-3000:] + answer.stdout[-3000:]
    return answer.stdout


@pytest.mark.timeout(600)
def test_bare_nodes_fetch_all_they_need_and_the_master_looks_after_the_stack(
    driver: LabDriver, file: ClusterFile, shell: Shell
) -> None:
    """Mounts that answer late, the project from S3 and from git, one build for all; then every stack task from there."""
    code = packages.project(packages.fill(driver.lab.shared / "packages"))
    boto3.client("s3").put_object(Bucket="ours", Key="code/project.tar.gz", Body=code)
    told: list[str] = []
    master, worker = create.create(plan.make(file), told.append)

    for host in (master, worker):
        report = json.loads((driver.lab.shared / f".dlami-cluster/bare/boot/{host.instance_id}.json").read_text())
        assert ("ready", ["ok"] * 9) == (report["status"], [s["result"] for s in report["steps"]])
        etc = driver.lab.host_folder(driver.hosts[host.instance_id]) / "upper/etc"
        mounts = [line.split()[1:3] for line in (etc / "fstab").read_text().splitlines() if "_netdev" in line]
        assert [["/efs", "nfs4"], ["/fsx", "lustre"]] == mounts
    assert not (_upper(driver, worker.instance_id) / "cluster.toml").exists()

    # The master's cluster file is the operator's, without what is of another seat.
    mine = clusterfile.read(_upper(driver, master.instance_id) / "cluster.toml")
    assert mine == file
    assert "stack    bare  CREATE_COMPLETE" in done(shell(master.instance_id, "inv stack.status"))
    done(shell(master.instance_id, "inv hosts.write"))
    assert 2 == done(shell(master.instance_id, "inv run --json -- hostname")).count('"exit_code": 0')

    done(shell(master.instance_id, "sed -i 's/^workers = 1/workers = 2/' cluster.toml"))
    assert "3 hosts" in done(shell(master.instance_id, "inv stack.update --yes"))

    # The laptop takes the file as it is now, moves the source to git, and ends the master: its successor fetches that.
    _repository(driver.lab.shared / "repository", code)
    now = clusterfile.parse(_tables(carried.of("bare", file.region)))
    assert 2 == now.nodes.workers
    now = with_(now, nodes=with_(now.nodes, source="https://git.example/"))
    update.execute(update.prepare(now), now, told.append)
    successor = update.replace(now, "0", told.append)[0].instance_id
    assert now == clusterfile.read(_upper(driver, successor) / "cluster.toml")

    done(shell(successor, "inv hosts.write"))
    replaced = done(shell(successor, "inv stack.replace --host 1 --yes --json"))
    assert [0, 1, 2] == [h["rank"] for h in json.loads(replaced)]
    assert worker.instance_id not in replaced

    gone = shell(successor, "inv stack.delete --yes")  # ends with the connection: the master is one of its resources
    assert "this machine is the master and ends with its stack" in gone.stderr
    assert wait_for(lambda: stack.find("bare", file.region) is None, 60, lambda: None)
    assert [] == driver.errors


def test_a_master_that_finds_no_project_is_the_first_cause_for_all(driver: LabDriver, file: ClusterFile) -> None:
    """S3's own words in the error, and workers that stop waiting at once."""
    with pytest.raises(StackError) as error:
        create.create(plan.make(file), lambda _: None, keep_failed=True)

    assert "(master): first boot failed project: " in str(error.value)
    assert "NoSuchKey" in str(error.value)
    reports = driver.lab.shared / ".dlami-cluster/bare/boot"

    def ended() -> dict[str, str]:
        said = [json.loads(p.read_text()) for p in reports.glob("i-*.json")]
        return {r["role"]: f"{r['status']} {r['step']}" for r in said}

    both = {"master": "failed project", "worker": "failed project"}
    assert wait_for(lambda: ended() == both, 60, lambda: None), ended()
    assert 1 == sum("the master failed: see " in p.read_text() for p in reports.glob("*.log"))
    create.delete(file, lambda _: None)


def _upper(driver: LabDriver, instance: str) -> Path:
    """The project's folder of a host, seen from this machine."""
    return driver.lab.host_folder(driver.hosts[instance]) / "upper" / PROJECT.lstrip("/")


def _tables(values: dict[str, object]) -> dict[str, object]:
    import tomllib

    return tomllib.loads(clusterfile.render(values))


def _repository(folder: Path, code: bytes) -> None:
    """The project as a git repository."""
    folder.mkdir()
    with tarfile.open(fileobj=io.BytesIO(code)) as tar:
        tar.extractall(folder, filter="tar")
    who = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    for words in (["init", "-q"], ["add", "-A"], [*who, "commit", "-q", "-m", "all"]):
        subprocess.run(["git", "-C", str(folder), *words], check=True, timeout=60)
