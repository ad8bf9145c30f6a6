"""Auto Scaling's background work: launch missing instances, terminate surplus ones, replace dead ones."""

import base64
import copy
import functools
import threading
import time
from typing import Any

from botocore.exceptions import ClientError
from moto.ec2 import ec2_backends

from lab.aws.groups import Group, GroupInstance, LifecycleHook
from lab.aws.moto_client import client
from lab.aws.overrides import default_disk_key, reservation_state
from lab.aws.schedule import due_in_s, execute_due
from lab.aws.state import ACCOUNT, FakeState

LAUNCHING, TERMINATING = "autoscaling:EC2_INSTANCE_LAUNCHING", "autoscaling:EC2_INSTANCE_TERMINATING"
RETRY = 30.0  # AWS's seconds between attempts to launch


class Scaler(threading.Thread):
    """Thread that processes every group after every change, and again later while a launch is due for a retry."""

    def __init__(self, world: FakeState) -> None:
        super().__init__(daemon=True, name="fake-scaling")
        self.world = world
        self.deadlines: dict[tuple[str, str], float] = {}  # (instance, hook) -> our clock

    def run(self) -> None:
        seen = -1
        while not self.world.closed:
            with self.world.changed:
                self.world.changed.wait_for(functools.partial(self.world.moved_on, seen), timeout=self._pause())
                seen = self.world.version
                for group in list(self.world.groups.values()):
                    self._step(group)
                self.world.rounds += 1
                self.world.changed.notify_all()

    def _pause(self) -> float | None:
        waits = [max(0.005, d - time.monotonic()) for d in self.deadlines.values()]
        if any(len(g.members) < g.settings["desired"] for g in self.world.groups.values()):
            waits.append(max(0.02, RETRY * self.world.scale))
        if (due_s := due_in_s(self.world)) is not None:
            waits.append(max(0.005, due_s))
        return min(waits) if waits else None

    def _step(self, group: Group) -> None:
        self._drop_dead(group)
        execute_due(self.world, group)
        self._shrink(group)
        self._grow(group)
        self._admit(group)
        if group.removing and not group.members:
            self.world.groups.pop((group.region, group.name), None)
            self.world.touch()

    def _drop_dead(self, group: Group) -> None:
        states = states_of(group.region, [m.id for m in group.members])
        for one in list(group.members):
            state = states.get(one.id, "terminated")
            if state in ("terminated", "shutting-down"):
                group.members.remove(one)
                group.say(
                    f"Terminating EC2 instance: {one.id}",
                    f"At {group.clock():%Y-%m-%dT%H:%M:%SZ} an instance was taken out of service "
                    "in response to an EC2 health check indicating it has been terminated or stopped.",
                )
                self.world.touch()
            elif state in ("stopped", "stopping"):
                one.health = "Unhealthy"
            if one.health == "Unhealthy" and "ReplaceUnhealthy" not in group.suspended and one in group.members:
                self._end(group, one, "in response to an EC2 instance status checks failure")

    def _shrink(self, group: Group) -> None:
        over = len(group.members) - group.settings["desired"]
        newest_first = sorted((m for m in group.members if not m.protected or group.removing), key=lambda m: -m.order)
        if "NewestInstance" not in group.settings["policies"]:
            newest_first.reverse()
        fewer = f"shrinking the capacity from {len(group.members)} to {group.settings['desired']}"
        for one in newest_first[: max(0, over)]:
            self._end(group, one, f"in response to a difference between desired and actual capacity, {fewer}")

    def _end(self, group: Group, one: GroupInstance, why: str) -> None:
        if "Terminate" in group.suspended and not group.removing:
            return
        if not self._hooks_done(group, one, TERMINATING, "Terminating:Wait") and not group.removing:
            return
        client("ec2", group.region).terminate_instances(InstanceIds=[one.id])
        group.members.remove(one)
        if one.launch:
            one.launch.finish("Cancelled")
        group.say(
            f"Terminating EC2 instance: {one.id}",
            f"At {group.clock():%Y-%m-%dT%H:%M:%SZ} an instance was taken out of service {why}.",
        )
        self.world.touch()

    def _grow(self, group: Group) -> None:
        if "Launch" in group.suspended:
            return
        while len(group.members) < group.settings["desired"]:
            try:
                one = launch(self.world, group)
            except ClientError as e:
                group.say(
                    "Launching a new EC2 instance",
                    f"At {group.clock():%Y-%m-%dT%H:%M:%SZ} an instance was started in response to a difference "
                    "between desired and actual capacity.",
                    "Failed",
                    f"{e.response['Error']['Message']} Launching EC2 instance failed.",
                )
                return
            if why := ends_at_start(self.world, group.region, one):
                self._kill(group, one, why)
                return
            group.members.append(one)
            one.launch = group.say(
                f"Launching a new EC2 instance: {one.id}",
                f"At {group.clock():%Y-%m-%dT%H:%M:%SZ} an instance was started in response to a "
                "difference between desired and actual capacity.",
                "InProgress",
            )
            self.world.touch()

    def _kill(self, group: Group, one: GroupInstance, why: str) -> None:
        """Terminate an instance before it is in service, as EC2 does by itself.

        Auto Scaling records its launch as Cancelled.
        """
        client("ec2", group.region).terminate_instances(InstanceIds=[one.id])
        group.say(
            f"Launching a new EC2 instance: {one.id}",
            f"At {group.clock():%Y-%m-%dT%H:%M:%SZ} an instance was started in response to a difference between "
            "desired and actual capacity.",
            "Cancelled",
            f"Instance became unhealthy while waiting for instance to be in InService state. Termination Reason: {why}",
        )

    def _admit(self, group: Group) -> None:
        for one in list(group.members):
            if one.state.startswith("Pending") and self._hooks_done(group, one, LAUNCHING, "Pending:Wait"):
                if "ABANDON" in one.waits_for.values():
                    one.waits_for.clear()
                    self._end(group, one, "because a lifecycle action was abandoned")
                    continue
                one.state = "InService"
                if one.launch:
                    one.launch.finish()
                self.world.touch()

    def _hooks_done(self, group: Group, one: GroupInstance, transition: str, waiting: str) -> bool:
        for name, hook in ((n, h) for n, h in group.hooks.items() if h.transition == transition):
            if not self._hook_done(one, name, hook):
                if one.state != waiting:
                    one.state = waiting
                    self.world.touch()
                return False
        return True

    def _hook_done(self, one: GroupInstance, name: str, hook: LifecycleHook) -> bool:
        result = one.waits_for.setdefault(name, "")
        end = self.deadlines.setdefault((one.id, name), time.monotonic() + hook.timeout * self.world.scale)
        if not result and time.monotonic() >= end:
            one.waits_for[name] = result = hook.default
        if result:
            self.deadlines.pop((one.id, name), None)
        return bool(result)


def states_of(region: str, ids: list[str]) -> dict[str, str]:
    """Return EC2's state of each instance that it still knows.

    Reads moto's own records. By the API this took a quarter of the fake's time, because every change asks for it.
    """
    known = ec2_backends[ACCOUNT][region].all_instances() if ids else []
    return {i.id: i.state for i in known if i.id in ids}


def ends_at_start(world: FakeState, region: str, one: GroupInstance) -> str:
    """Return why EC2 terminates an instance before it runs; empty if it runs.

    One reason is a default key for disks that has no grant for Auto Scaling's role.
    """
    for kind in (f"{one.type}@{one.zone}", one.type):
        if kind in world.kills:
            return world.kills[kind]
    key = default_disk_key(region)
    if key and not client("kms", region).list_grants(KeyId=key)["Grants"]:
        return "Client.InternalError: Client error on launch"
    return ""


def launch(world: FakeState, group: Group) -> GroupInstance:
    """Launch an instance from the group's launch template. Raises ClientError as EC2 would."""
    ec2 = client("ec2", group.region)
    chosen = group.settings["template"]
    version = ec2.describe_launch_template_versions(
        LaunchTemplateId=chosen["LaunchTemplateId"], Versions=[str(chosen["Version"])]
    )
    data = version["LaunchTemplateVersions"][0]["LaunchTemplateData"]
    kind, zone = data["InstanceType"], _zone(ec2, group)
    limit = next((key for key in (f"{kind}@{zone}", kind) if key in world.capacity), None)
    if limit and world.capacity[limit] < 1:
        raise _refused(
            "InsufficientInstanceCapacity",
            f"We currently do not have sufficient {kind} capacity in the Availability Zone you requested ({zone}). "
            "Our system will be working on provisioning additional capacity.",
        )
    if (name := _reservation(group, data)) and (state := reservation_state(world, name)) != "active":
        raise _refused("UnsupportedOperation", f"The capacity reservation {name} is {state}, not active.")
    made = ec2.run_instances(MinCount=1, MaxCount=1, **_request(ec2, world, group, data))["Instances"][0]
    if limit:
        world.capacity[limit] -= 1
    # moto's own clock is this machine's.
    ec2_backends[ACCOUNT][group.region].get_instance(made["InstanceId"]).launch_time = world.now().replace(tzinfo=None)
    return GroupInstance(
        made["InstanceId"],
        kind,
        zone,
        {"LaunchTemplateId": chosen["LaunchTemplateId"], "Version": str(chosen["Version"])},
        next(group.counter),
    )


def _reservation(group: Group, data: dict[str, Any]) -> str:
    """Return the reservation that the group's instances are launched into, if any."""
    in_template = data.get("CapacityReservationSpecification", {}).get("CapacityReservationTarget", {})
    of_group = (group.settings["reservation"] or {}).get("CapacityReservationTarget", {})
    return str(in_template.get("CapacityReservationId") or next(iter(of_group.get("CapacityReservationIds", [])), ""))


def _zone(ec2: Any, group: Group) -> str:
    if group.settings["subnets"]:
        return ec2.describe_subnets(SubnetIds=group.settings["subnets"][:1])["Subnets"][0]["AvailabilityZone"]
    return group.settings["zones"][0]


def _request(ec2: Any, world: FakeState, group: Group, data: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of RunInstances: the template's, with the group's subnet and tags."""
    tags = {
        t["Key"]: t["Value"]
        for spec in data.get("TagSpecifications", [])
        if spec["ResourceType"] == "instance"
        for t in spec["Tags"]
    }
    tags |= {
        t["Key"]: t["Value"] for t in group.settings["tags"] if str(t.get("PropagateAtLaunch", True)).lower() == "true"
    }
    tags |= {"aws:autoscaling:groupName": group.name, **group.own_tags}
    primary = next(i for i in data["NetworkInterfaces"] if i["DeviceIndex"] == 0 and not i.get("NetworkCardIndex"))
    request: dict[str, Any] = {
        "ImageId": data["ImageId"],
        "InstanceType": data["InstanceType"],
        "UserData": base64.b64decode(data["UserData"]).decode(),
        "TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": k, "Value": v} for k, v in tags.items()]}],
        "MetadataOptions": {
            k: v
            for k, v in data.get("MetadataOptions", {}).items()
            if k in ("HttpTokens", "HttpPutResponseHopLimit", "HttpEndpoint")
        },
    }
    if "KeyName" in data:
        request["KeyName"] = data["KeyName"]
    if "IamInstanceProfile" in data:
        request["IamInstanceProfile"] = data["IamInstanceProfile"]
    if fixed := primary.get("NetworkInterfaceId"):
        _free(ec2, fixed)
        request["NetworkInterfaces"] = [{"DeviceIndex": 0, "NetworkInterfaceId": fixed}]
    else:
        request |= {"SubnetId": group.settings["subnets"][0], "SecurityGroupIds": primary["Groups"]}
    return request


def _free(ec2: Any, interface: str) -> None:
    """Detach an interface from a dead instance, so that it can be used again. Raises ClientError if it is in use."""
    described = ec2.describe_network_interfaces(NetworkInterfaceIds=[interface])["NetworkInterfaces"][0]
    attachment = described.get("Attachment", {})
    if holder := attachment.get("InstanceId"):
        if states_of(ec2.meta.region_name, [holder]).get(holder, "terminated") not in ("terminated", "shutting-down"):
            raise _refused("InvalidNetworkInterface.InUse", f"Interface: [{interface}] in use.")
        # EC2 detaches the interfaces of a terminated instance. Moto keeps the primary one, and cannot detach it by
        # its API.
        backend = ec2_backends[ACCOUNT][ec2.meta.region_name]
        ended, own = backend.get_instance(holder), backend.get_network_interface(interface)
        remembered = copy.copy(own)
        ended.detach_eni(own)
        ended.nics[0] = remembered  # without one moto describes no instance at all any more


def _refused(code: str, message: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}}, "RunInstances")
