"""Simulated nodes without machines: each new instance reports what its first boot would report.

The control API sets how they boot.
"""

import functools
import threading
from typing import Any

from botocore.exceptions import ClientError

from lab.aws.cloudformation import CloudFormation
from lab.aws.groups import Group, GroupInstance
from lab.aws.moto_client import client
from lab.aws.protocol import AwsFault
from lab.aws.state import FakeState

HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAfakefakefakefakefakefakefakefakefakefakefake"


class NodeSignals(threading.Thread):
    """Thread that signals for every new instance, while the fake's `nodes` setting is 'ready'."""

    def __init__(self, world: FakeState, cloudformation: CloudFormation) -> None:
        super().__init__(daemon=True, name="fake-nodes")
        self.world, self.cloudformation = world, cloudformation
        self.done: set[str] = set()

    def run(self) -> None:
        seen = -1
        while not self.world.closed:
            with self.world.changed:
                self.world.changed.wait_for(functools.partial(self.world.moved_on, seen))
                seen = self.world.version
                if self.world.nodes == "ready":
                    for group in list(self.world.groups.values()):
                        self._boot(group)

    def _boot(self, group: Group) -> None:
        for one in [m for m in group.members if m.id not in self.done]:
            self.done.add(one.id)
            rule = self._rule(group)
            if rule and rule["do"] == "silent":
                continue
            failed = rule is not None and rule["do"] == "fail"
            boot = "ready"
            if rule is not None and failed:
                boot = f"failed {rule['step']}: {rule.get('last', 'Connection timed out')}"
            try:
                client("ec2", group.region).create_tags(
                    Resources=[one.id],
                    Tags=[
                        {"Key": f"{self.world.tag_prefix}boot", "Value": boot},
                        {"Key": f"{self.world.tag_prefix}host-key", "Value": HOST_KEY},
                    ],
                )
            except ClientError:
                continue  # it went away meanwhile, as instances do
            self._signal(group, one, "FAILURE" if failed else "SUCCESS")
            self.world.touch()

    def _rule(self, group: Group) -> dict[str, Any] | None:
        role = next((t["Value"] for t in group.settings["tags"] if t["Key"] == f"{self.world.tag_prefix}role"), "")
        for rule in self.world.node_rules:
            if rule["times"] > 0 and rule["role"] == role:
                rule["times"] -= 1
                return rule
        return None

    def _signal(self, group: Group, one: GroupInstance, status: str) -> None:
        tags = group.own_tags
        if "aws:cloudformation:stack-name" not in tags:
            return
        try:
            self.cloudformation.signal_resource(
                group.region,
                {
                    "StackName": tags["aws:cloudformation:stack-name"],
                    "LogicalResourceId": tags["aws:cloudformation:logical-id"],
                    "UniqueId": one.id,
                    "Status": status,
                },
            )
        except AwsFault:
            return  # the stack waits for no signal: this is a later node; the real script ignores it too
