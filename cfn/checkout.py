"""Upload of the local checkout (`nodes.source = "checkout"`) to the master, whose first boot waits for it."""

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from cfn.aws import Aws, asking, pages
from cfn.hostfile import HOST_KEY, way_in
from cfn.hosts import GroupMember
from cfn.progress import Show
from cfn.template.design import TAG
from cluster import scratch
from cluster.clusterfile.model import ClusterFile
from cluster.clusterfile.nodes import CHECKOUT
from cluster.code.archive import compressed, write_archive
from cluster.code.snapshot import take
from cluster.errors import ClusterError, ConfigError
from cluster.files import IS_CHECKOUT
from cluster.hosts import Host
from cluster.inventory import ROOT, Cluster, access_of
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from cluster.ssh.noise_filter import marked, trouble
from cluster.terminal import counted

ARRIVING = "/run/dlami-cluster/arriving"  # on the master, where scripts/first-boot.sh waits for it
_SENDING = Limits(connect_s=20, total_s=600)
_AGAIN_S = 10.0


class Checkout:
    """Local checkout to be sent to a booting master."""

    def __init__(self, aws: Aws, file: ClusterFile, show: Show, root: Path = ROOT) -> None:
        """Take a snapshot of the checkout.

        Raises ConfigError if there is no checkout, or if it holds files that must not leave this machine.
        """
        if root == ROOT and not IS_CHECKOUT:
            raise ConfigError(
                f"nodes.source is {CHECKOUT!r}, and this dlami-cluster is installed and not checked out: type it in a "
                "checkout, or give an address"
            )
        self._aws, self._file, self._show = aws, file, show
        self._snapshot = take(root)
        self._not_before, self._said = 0.0, ""
        self.is_there = False

    def __str__(self) -> str:
        one = self._snapshot
        said = f"checkout  {counted(len(one.files), 'file')}, {one.size / 1e6:,.1f} MB of {one.root}"
        return f"{said}, {one.revision}" if one.revision else said

    def bring(self) -> bool:
        """Send the checkout to the master if its first boot waits for it. Return True if it was sent by this call.

        A failure is shown to the operator, and the next calls try again.
        """
        if self.is_there or time.monotonic() < self._not_before:
            return False
        found = self._waiting()
        if found is None:
            return False
        try:
            self._send(*found)
        except ClusterError as e:
            self._not_before = time.monotonic() + _AGAIN_S
            self._tell(f"  the checkout is not at the master yet: {e}")
            return False
        self.is_there = True
        self._tell("  the checkout is brought to the master")
        return True

    def _tell(self, line: str) -> None:
        """Show the line, unless it was also the last one shown."""
        if line != self._said:
            self._said = line
            self._show(line)

    def _waiting(self) -> tuple[GroupMember, str] | None:
        """Return the master and its public address ("" if none) once its first boot waits for the project.

        Returns None before that, and while it has not published its host key as a tag.
        """
        wanted = {"cluster": self._file.name, "role": "master", "boot": "running project"}
        filters = [{"Name": f"tag:{TAG}{name}", "Values": [value]} for name, value in wanted.items()]
        running = {"Name": "instance-state-name", "Values": ["running"]}
        with asking("looking for the master"):
            found = pages(self._aws.client("ec2"), "describe_instances", "Reservations", Filters=[*filters, running])
        for one in (i for r in found for i in r["Instances"]):
            tags = {t["Key"]: t["Value"] for t in one.get("Tags", [])}
            if HOST_KEY.fullmatch(tags.get(f"{TAG}host-key", "")):
                return _member(one, tags), str(one.get("PublicIpAddress", ""))
        return None

    def _send(self, master: GroupMember, public: str) -> None:
        """Send the archive to the master over SSH. Raises ClusterError if it does not arrive complete."""
        with tempfile.TemporaryDirectory(prefix="checkout-", dir=scratch.folder()) as made:
            folder = Path(made)
            with (folder / "project.tar").open("wb") as file:
                write_archive(self._snapshot, file)
            archive = compressed(folder / "project.tar")
            size = archive.stat().st_size
            script = (
                f"umask 077; cd {ARRIVING} && cat >part && "
                f'{{ [ "$(wc -c <part)" -eq {size} ] || {{ echo "it did not arrive whole" >&2; exit 1; }}; }} && '
                "mv part project.tar.gz"
            )
            cluster = self._cluster(folder, master, public)
            with Executor(cluster, label="checkout") as reach:
                result = reach.run([cluster.master], marked(script), stdin=archive, limits=_SENDING)[cluster.master]
        if why := trouble(result):
            raise ClusterError(why)

    def _cluster(self, folder: Path, master: GroupMember, public: str) -> Cluster:
        """Return the master alone as a cluster reachable over SSH, before the stack has outputs.

        Its host key comes from its tag.
        """
        file = self._file
        outputs = {
            "AccessMode": file.access.mode,
            "MasterPrivateAddress": master.address,
            "MasterAddress": public or master.address,
        }
        gateway = way_in(outputs, [master], file.ssh.port)
        known = folder / "known_hosts"
        known.write_text("".join(f"{name} {master.host_key}\n" for name in {master.address, gateway or master.address}))
        here = replace(file, ssh=replace(file.ssh, known_hosts=str(known), gateway=gateway or ""))
        return Cluster(
            name=file.name,
            hosts=(Host(rank=0, address=master.address, slots=1),),
            folder=folder,
            shared=file.shared,
            project=file.project,
            access=access_of(here, Path.cwd()),
        )


def _member(described: dict[str, Any], tags: dict[str, str]) -> GroupMember:
    return GroupMember(
        instance_id=described["InstanceId"],
        role="master",
        address=described.get("PrivateIpAddress", ""),
        launched=described["LaunchTime"],
        lifecycle="Pending",
        health="Healthy",
        boot=tags[f"{TAG}boot"],
        host_key=tags[f"{TAG}host-key"],
        rank=0,
    )
