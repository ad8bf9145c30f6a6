"""First boot as a bare DLAMI takes it: nothing mounted, no project, no runtime."""

import json
import subprocess
from pathlib import Path

import boto3
import pytest

from cfn import create, plan, stack
from cfn.aws import Aws
from cfn.progress import wait_for
from cfn.stack import StackError
from cluster.clusterfile.model import Access, ClusterFile, Network, Nodes, Ssh, Storage
from lab import network
from lab.aws.driver import LabDriver
from lab.record import SHARED
from tests.conftest import PATIENCE_S

PROJECT = "/opt/dlami-cluster"
# A lab has no NFS and no Lustre server: their helpers bind a folder of the lab, and the first answer does not come.
MOUNT_NFS = f"""#!/bin/sh
echo "$*" >>{SHARED}/mounts.log
[ -e /run/asked ] || {{ touch /run/asked; echo "mount.nfs4: Connection timed out" >&2; exit 32; }}
mount --bind {SHARED} "$2"
"""
STUNNEL = f"""#!/bin/sh
cp "$1" {SHARED}/stunnel.conf
"""
MOUNT_LUSTRE = f"""#!/bin/sh
mkdir -p {SHARED}/fast
mount --bind {SHARED}/fast "$2"
"""


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An AMI with mount helpers."""
    root = tmp_path / "image"
    files = {
        "usr/sbin/mount.nfs4": MOUNT_NFS,
        "usr/sbin/mount.lustre": MOUNT_LUSTRE,
        "usr/sbin/modinfo": "#!/bin/sh\n",  # the image's kernel has Lustre's module
        "usr/bin/stunnel": STUNNEL,
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
        (root / name).chmod(0o755)
    return root


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """The operator's key; its public half is `access.public_key`."""
    made = tmp_path / "operator"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "me@laptop", "-f", str(made)], check=True)
    return made


@pytest.fixture
def file(driver: LabDriver, key: Path) -> ClusterFile:
    """1 + 1 nodes that must fetch everything; the project is in a bucket."""
    public, private = network.IPv4Network(driver.lab.network).subnets(prefixlen_diff=1)
    boto3.client("s3").create_bucket(Bucket="ours")
    boto3.client("s3").put_object(Bucket="ours", Key="code/project.tar.gz", Body=b"ours")
    return ClusterFile(
        name="bare",
        shared="/efs",
        project=PROJECT,
        ssh=Ssh(user="root"),
        access=Access(mode="ssm", public_key=key.with_suffix(".pub").read_text().strip()),
        nodes=Nodes(instance_type="g5.xlarge", workers=1, boot_minutes=20, source="s3://ours/code/project.tar.gz"),
        storage=Storage(s3="s3://ours/code", fsx_gib=1200),
        network=Network(cidr=driver.lab.network, public_cidr=str(public), private_cidr=str(private)),
    )


def test_a_source_that_changed_since_it_was_pinned_is_the_first_cause_for_all(
    driver: LabDriver, file: ClusterFile, account: Aws, key: Path
) -> None:
    """S3's own words in the error, nothing of it unpacked, and workers that stop waiting at once.

    On the way there: the shared folder is mounted through TLS, whose far end must prove to be this file system; and the
    nodes let the operator in by `access.public_key`, as who they told they are.
    """
    made = plan.make(account, file)
    boto3.client("s3").put_object(Bucket="ours", Key="code/project.tar.gz", Body=b"somebody else's")
    with pytest.raises(StackError) as error:
        create.create(account, made, lambda _: None, keep_failed=True)

    assert "(master): first boot failed project: " in str(error.value)
    assert "PreconditionFailed" in str(error.value)
    reports = driver.lab.shared / ".dlami-cluster/bare/boot"

    def ended() -> dict[str, str]:
        said = [json.loads(p.read_text()) for p in reports.glob("i-*.json")]
        return {r["role"]: f"{r['status']} {r['step']}" for r in said}

    both = {"master": "failed project", "worker": "failed project"}
    assert wait_for(lambda: ended() == both, 300, lambda: None), ended()

    def logged() -> bool:  # a report is published before its log
        return 1 == sum("the master failed: see " in p.read_text() for p in reports.glob("*.log"))

    assert wait_for(logged, 300, lambda: None)

    mounts = (driver.lab.shared / "mounts.log").read_text().splitlines()
    assert all(m.startswith("127.0.0.1:/ /efs ") and ",port=20049" in m for m in mounts), mounts
    system = stack.resource_ids(account, stack.get(account, "bare"))["SharedFileSystem"]
    tunnel = (driver.lab.shared / "stunnel.conf").read_text().splitlines()
    assert {"verifyChain = yes", f"checkHost = {system}.efs.us-east-1.amazonaws.com"} <= set(tunnel)
    assert 0o1777 == driver.lab.shared.stat().st_mode & 0o7777

    known = driver.lab.shared / ".dlami-cluster/bare/known_hosts"
    options = ["BatchMode=yes", "IdentitiesOnly=yes", "StrictHostKeyChecking=yes", f"UserKnownHostsFile={known}"]
    words = ["ssh", "-F", "/dev/null", "-i", str(key), *(word for option in options for word in ("-o", option))]
    addresses = [line.split()[0] for line in known.read_text().splitlines()]
    assert 2 == len(addresses)
    for address in addresses:
        done = subprocess.run([*words, f"root@{address}", "id -un"], capture_output=True, text=True, timeout=PATIENCE_S)
        assert "root\n" == done.stdout, done.stderr
    create.delete(account, file, lambda _: None)
