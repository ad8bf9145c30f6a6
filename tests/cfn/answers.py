"""An account whose answers are written down, for what is made of them: no stand-in of AWS has to run for that."""

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from dataclasses import replace as with_
from types import SimpleNamespace
from typing import Any

from botocore.exceptions import ClientError

from cfn import in_stack
from cfn.aws import Aws
from cfn.hosts import GroupMember
from cfn.template.design import TAG
from cluster.clusterfile.model import ClusterFile

Answer = Any  # a value, an error, or what makes one of the arguments
BEGAN = datetime.datetime(2027, 1, 15, 12, 0, tzinfo=datetime.UTC)


@dataclass(frozen=True)
class Account(Aws):
    """Each operation by its name has an answer: a value, an error, or what makes one of the arguments."""

    said: dict[str, Any] = field(default_factory=dict, compare=False)
    missing: tuple[str, ...] = ()  # services that AWS does not have there

    def client(self, service: str) -> Any:
        return Service(service, self.said)

    def in_region(self, region: str) -> "Account":
        return with_(self, region=region)

    def offers(self, service: str) -> bool:
        return service not in self.missing


class Service:
    """What answers for one service; `fsx.describe_file_systems` is before `describe_file_systems`."""

    def __init__(self, service: str, said: dict[str, Any]) -> None:
        self._service, self._said = service, said

    def __getattr__(self, operation: str) -> Any:
        said = self._said
        key = next((k for k in (f"{self._service}.{operation}", operation) if k in said), None)
        assert key is not None, f"nobody has written down what {self._service} answers to {operation}"

        def call(**given: Any) -> Any:
            answer = said[key](**given) if callable(said[key]) else said[key]
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call

    def get_paginator(self, operation: str) -> Any:
        """An answer that is a list has its pages."""

        def paginate(**given: Any) -> Any:
            said = getattr(self, operation)(**given)
            return iter(said if isinstance(said, list) else [said])

        return SimpleNamespace(paginate=paginate)


def account(**said: Any) -> Account:
    """An account in us-east-1 with these answers."""
    return Account("us-east-1", said=said)


def answering(**services: Mapping[str, Any]) -> Account:
    """The same, the answers of each service by themselves."""
    return account(**{f"{name}.{operation}": said for name, own in services.items() for operation, said in own.items()})


def refused(code: str, message: str = "no") -> ClientError:
    """A request that AWS refuses."""
    return ClientError({"Error": {"Code": code, "Message": message}}, "Asked")


def member(rank: int | None, **more: Any) -> GroupMember:
    """A host that can be used: the master as rank 0, else a worker."""
    made: dict[str, Any] = {
        "instance_id": f"i-{rank}",
        "role": "worker" if rank else "master",
        "address": f"10.0.0.{rank}",
        "launched": BEGAN + datetime.timedelta(minutes=rank or 0),
        "lifecycle": "InService",
        "health": "Healthy",
        "boot": "ready",
        "rank": rank,
    }
    return GroupMember(**{**made, **more})


def nodes(*members: GroupMember, name: str = "demo", most: int = 9) -> dict[str, Any]:
    """What AWS answers of these instances and of both groups."""
    held = {role: [m for m in members if m.role == role] for role in ("master", "worker")}
    groups = [
        {
            "AutoScalingGroupName": f"{name}-{suffix}",
            "MinSize": 0,
            "MaxSize": most,
            "DesiredCapacity": len(held[role]),
            "SuspendedProcesses": [],
            "Instances": [
                {"InstanceId": m.instance_id, "LifecycleState": m.lifecycle, "HealthStatus": m.health}
                for m in held[role]
            ],
        }
        for role, suffix in (("master", "master"), ("worker", "workers"))
    ]
    described = [
        {
            "InstanceId": m.instance_id,
            "LaunchTime": m.launched,
            "PrivateIpAddress": m.address,
            "Tags": tags(boot=m.boot, role=m.role, **{"host-key": m.host_key}, rank="" if m.rank is None else m.rank),
        }
        for m in members
    ]
    return {
        "describe_auto_scaling_groups": {"AutoScalingGroups": groups},
        "describe_instances": {"Reservations": [{"Instances": described}]},
        "describe_scaling_activities": {"Activities": []},
        "describe_scheduled_actions": {"ScheduledUpdateGroupActions": [], "ResponseMetadata": {"HTTPHeaders": {}}},
        "create_tags": {},
    }


def tags(**own: Any) -> list[dict[str, str]]:
    """Our tags as AWS has them."""
    return [{"Key": f"{TAG}{name}", "Value": str(value)} for name, value in own.items()]


def stack_of(file: ClusterFile, status: str = "CREATE_COMPLETE", **outputs: str) -> dict[str, Any]:
    """What CloudFormation answers of the stack that was made from this file."""
    known = {
        "MasterGroup": f"{file.name}-master",
        "WorkerGroup": f"{file.name}-workers",
        "MasterAddress": "198.51.100.7",
        "MasterPrivateAddress": "10.0.0.0",
        "FileSystem": "fs-1",
        "Slots": "8",
        **outputs,
    }
    said = {
        "StackId": f"id-of-{file.name}",
        "StackName": file.name,
        "StackStatus": status,
        "Outputs": [{"OutputKey": k, "OutputValue": v} for k, v in known.items()],
    }
    return {
        "describe_stacks": {"Stacks": [said]},
        "describe_stack_events": {"StackEvents": []},
        "get_template": {"TemplateBody": {"Metadata": {in_stack.KEY: in_stack.values(file)}}},
        "list_stack_resources": {"StackResourceSummaries": []},
    }


def resources(kinds: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """What a stack has made: (type, id)."""
    return {
        "list_stack_resources": {
            "StackResourceSummaries": [
                {"LogicalResourceId": f"R{n}", "ResourceType": kind, "PhysicalResourceId": name}
                for n, (kind, name) in enumerate(kinds)
            ]
        }
    }
