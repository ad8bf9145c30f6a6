"""Auto Scaling API, as far as CloudFormation's groups need it."""

from typing import Any

from lab.aws import groups
from lab.aws.groups import Activity, Group, GroupInstance
from lab.aws.moto_client import client
from lab.aws.protocol import AwsFault, page
from lab.aws.schedule import Schedules
from lab.aws.state import FakeState


class AutoScaling(Schedules):
    """Handler with one method per operation. The dispatcher reports operations without a method as errors."""

    def __init__(self, world: FakeState) -> None:
        self.world = world

    def describe_auto_scaling_groups(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        wanted = p.get("AutoScalingGroupNames") or []
        found = [
            _group(g) for g in self.world.groups.values() if g.region == region and (not wanted or g.name in wanted)
        ]
        items, token = page(found, p, self.world.page_size, "MaxRecords")
        return {"AutoScalingGroups": items, **token}

    def describe_auto_scaling_instances(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        wanted = p.get("InstanceIds") or []
        found = [
            {**_member(m), "AutoScalingGroupName": g.name}
            for g in self.world.groups.values()
            if g.region == region
            for m in g.members
            if not wanted or m.id in wanted
        ]
        items, token = page(found, p, self.world.page_size, "MaxRecords")
        return {"AutoScalingInstances": items, **token}

    def describe_scaling_activities(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        group = groups.get(self.world, region, p["AutoScalingGroupName"])
        items, token = page([_activity(a, group) for a in group.activities], p, self.world.page_size, "MaxRecords")
        return {"Activities": items, **token}

    def terminate_instance_in_auto_scaling_group(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        group, one = groups.member(self.world, region, p["InstanceId"])
        if p["ShouldDecrementDesiredCapacity"]:
            if group.settings["desired"] - 1 < group.settings["min"]:
                raise AwsFault(
                    "ValidationError",
                    "Currently, desiredSize equals minSize. Terminating instance without replacement will violate "
                    "group's min size constraint. Either set shouldDecrementDesiredCapacity flag to "
                    "false or lower group's min size.",
                )
            group.settings = {**group.settings, "desired": group.settings["desired"] - 1}
        client("ec2", region).terminate_instances(InstanceIds=[one.id])
        group.members.remove(one)
        done = group.say(
            f"Terminating EC2 instance: {one.id}",
            f"instance {one.id} was taken out of service in response to a user request.",
        )
        self.world.touch()
        return {"Activity": _activity(done, group)}

    def set_desired_capacity(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        group, desired = groups.get(self.world, region, p["AutoScalingGroupName"]), int(p["DesiredCapacity"])
        if not group.settings["min"] <= desired <= group.settings["max"]:
            raise AwsFault(
                "ValidationError", f"New SetDesiredCapacity value {desired} is outside the group's min and max size"
            )
        group.settings = {**group.settings, "desired": desired}
        self.world.touch()
        return {}

    def update_auto_scaling_group(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        known = {"AutoScalingGroupName", "MinSize", "MaxSize", "DesiredCapacity"}
        if extra := sorted(p.keys() - known):
            raise AwsFault("ValidationError", f"this fake does not change {extra} of a group")
        names = {"min": "MinSize", "max": "MaxSize", "desired": "DesiredCapacity"}
        sizes = {ours: int(p[theirs]) for ours, theirs in names.items() if theirs in p}
        groups.resize(self.world, region, p["AutoScalingGroupName"], sizes)
        return {}

    def set_instance_health(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        groups.member(self.world, region, p["InstanceId"])[1].health = p["HealthStatus"]
        self.world.touch()
        return {}

    def suspend_processes(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        groups.get(self.world, region, p["AutoScalingGroupName"]).suspended |= set(
            p.get("ScalingProcesses") or groups.PROCESSES
        )
        return {}

    def resume_processes(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        groups.get(self.world, region, p["AutoScalingGroupName"]).suspended -= set(
            p.get("ScalingProcesses") or groups.PROCESSES
        )
        self.world.touch()
        return {}

    def put_lifecycle_hook(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        groups.put_hook(
            self.world,
            region,
            p["AutoScalingGroupName"],
            p["LifecycleHookName"],
            p["LifecycleTransition"],
            int(p.get("HeartbeatTimeout", 3600)),
            p.get("DefaultResult", "ABANDON"),
        )
        return {}

    def complete_lifecycle_action(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        _, one = groups.member(self.world, region, p["InstanceId"])
        if one.waits_for.get(p["LifecycleHookName"]) != "":
            raise AwsFault("ValidationError", f"No active Lifecycle Action found with instance ID {one.id}")
        one.waits_for[p["LifecycleHookName"]] = p["LifecycleActionResult"]
        self.world.touch()
        return {}

    def create_auto_scaling_group(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        if "LaunchTemplate" not in p:
            raise AwsFault("ValidationError", "this fake makes groups from launch templates only")
        wanted = groups.settings(
            {**p, "VPCZoneIdentifier": [s for s in p.get("VPCZoneIdentifier", "").split(",") if s]}
        )
        groups.create(self.world, region, p["AutoScalingGroupName"], wanted, {})
        return {}

    def delete_auto_scaling_group(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        group = groups.get(self.world, region, p["AutoScalingGroupName"])
        if group.members and not p.get("ForceDelete"):
            raise AwsFault(
                "ResourceInUse",
                "You cannot delete an AutoScalingGroup while there are instances or pending Spot instance request(s) "
                "still in the group.",
            )
        groups.remove(self.world, region, group.name)
        return {}


def _member(m: GroupInstance) -> dict[str, Any]:
    return {
        "InstanceId": m.id,
        "InstanceType": m.type,
        "AvailabilityZone": m.zone,
        "LifecycleState": m.state,
        "HealthStatus": m.health,
        "LaunchTemplate": m.template,
        "ProtectedFromScaleIn": m.protected,
    }


def _group(g: Group) -> dict[str, Any]:
    s = g.settings
    tags = [
        {
            "Key": t["Key"],
            "Value": t["Value"],
            "PropagateAtLaunch": True,
            "ResourceId": g.name,
            "ResourceType": "auto-scaling-group",
        }
        for t in s["tags"]
    ]
    tags += [
        {"Key": k, "Value": v, "PropagateAtLaunch": True, "ResourceId": g.name, "ResourceType": "auto-scaling-group"}
        for k, v in g.own_tags.items()
    ]
    return {
        "AutoScalingGroupName": g.name,
        "AutoScalingGroupARN": g.arn,
        "MinSize": s["min"],
        "MaxSize": s["max"],
        "DesiredCapacity": s["desired"],
        "DefaultCooldown": 300,
        "AvailabilityZones": s["zones"] or sorted({m.zone for m in g.members}),
        "HealthCheckType": s["check"],
        "HealthCheckGracePeriod": s["grace"],
        "CreatedTime": g.created,
        "VPCZoneIdentifier": ",".join(s["subnets"]),
        "Tags": tags,
        "LaunchTemplate": {
            "LaunchTemplateId": s["template"]["LaunchTemplateId"],
            "Version": str(s["template"]["Version"]),
        },
        "Instances": [_member(m) for m in g.members],
        "TerminationPolicies": s["policies"],
        "SuspendedProcesses": [{"ProcessName": n, "SuspensionReason": "User suspended"} for n in sorted(g.suspended)],
        **({"Status": "Delete in progress"} if g.removing else {}),
    }


def _activity(a: Activity, group: Group) -> dict[str, Any]:
    return {
        "ActivityId": a.id,
        "AutoScalingGroupName": group.name,
        "Description": a.description,
        "Cause": a.cause,
        "StartTime": a.start,
        "StatusCode": a.status,
        "Progress": 100 if a.end else 30,
        **({"EndTime": a.end} if a.end else {}),
        **({"StatusMessage": a.message} if a.message else {}),
    }


def instances(world: FakeState, only: str = "") -> list[dict[str, Any]]:
    """Return every instance of every group, or the one with this id, with what is needed to run it.

    That is its address, tags and type. Nodes of a Kubernetes cluster are left out: nothing here would boot them.
    """
    with world.lock:
        scaled = [g for g in world.groups.values() if "eks:cluster-name" not in g.own_tags]
        of = [(g, m) for g in scaled for m in g.members if only in ("", m.id)]
        entries: dict[str, Any] = {}
        for region in {g.region for g, _ in of}:
            ids = [m.id for g, m in of if g.region == region]
            found = client("ec2", region).describe_instances(InstanceIds=ids)["Reservations"]
            entries |= {i["InstanceId"]: i for r in found for i in r["Instances"]}
        return [_told(group, one, entries[one.id]) for group, one in of]


def _told(group: Group, one: GroupInstance, entry: dict[str, Any]) -> dict[str, Any]:
    """Return one instance as these records show it, from its group and EC2's description."""
    return {
        "id": one.id,
        "group": group.name,
        "region": group.region,
        "type": one.type,
        "state": one.state,
        "health": one.health,
        "private_ip": entry["PrivateIpAddress"],
        "tags": {t["Key"]: t["Value"] for t in entry.get("Tags", [])},
    }
