"""CloudFormation API of the fake AWS, over its own stacks."""

from typing import Any

from lab.aws.engine import OperationRunner
from lab.aws.protocol import AwsFault, page
from lab.aws.stacks import FakeStack, LogicalResource, differences, read
from lab.aws.state import FakeState

NO_CHANGES = "The submitted information didn't contain changes. Submit different information to create a change set."


class CloudFormation:
    """Handler with one method per operation."""

    def __init__(self, world: FakeState) -> None:
        self.world = world

    def _find(self, region: str, name: str, deleted: bool = True) -> FakeStack:
        """Return a stack: by name only an existing one, by id also a deleted one, as AWS does. Raises AwsFault."""
        for stack in self.world.stacks.values():
            if stack.region == region and (
                (stack.id == name and deleted) or (stack.name == name and stack.status != "DELETE_COMPLETE")
            ):
                return stack
        raise AwsFault("ValidationError", f"Stack with id {name} does not exist")

    def create_stack(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        if any(
            s.name == p["StackName"] and s.region == region and s.status != "DELETE_COMPLETE"
            for s in self.world.stacks.values()
        ):
            raise AwsFault("AlreadyExistsException", f"Stack [{p['StackName']}] already exists")
        template, parameters = read(p["TemplateBody"], region, p.get("Parameters", []), {}, p.get("Capabilities", []))
        stack = FakeStack(
            p["StackName"],
            region,
            template,
            p["TemplateBody"],
            parameters,
            p.get("Tags", []),
            p.get("OnFailure", "ROLLBACK"),
            bool(p.get("EnableTerminationProtection")),
            token=p.get("ClientRequestToken", ""),
        )
        self.world.stacks[stack.id] = stack
        stack.say("CREATE_IN_PROGRESS", "User Initiated")
        engine = OperationRunner(self.world, stack)
        engine.start(engine.create)
        return {"StackId": stack.id}

    def delete_stack(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        try:
            stack = self._find(region, p["StackName"])
        except AwsFault:
            return {}
        if stack.status == "DELETE_COMPLETE":
            return {}
        if stack.protected:
            raise AwsFault(
                "ValidationError", f"Stack [{stack.name}] cannot be deleted while TerminationProtection is enabled"
            )
        if stack.status.endswith("IN_PROGRESS") and stack.status != "CREATE_IN_PROGRESS":
            raise AwsFault("ValidationError", f"Stack [{stack.id}] is in {stack.status} state and can not be deleted.")
        retain = p.get("RetainResources", [])
        if retain and stack.status != "DELETE_FAILED":
            raise AwsFault(
                "ValidationError",
                "Invalid operation on stack. RetainResources may only be given for a stack in DELETE_FAILED",
            )
        engine = OperationRunner(self.world, stack)
        stack.status = "DELETE_IN_PROGRESS"
        engine.start(engine.delete, retain)
        return {}

    def update_stack(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        stack, text, template, parameters = self._prepare(region, p)
        if not differences(stack, template, parameters):
            raise AwsFault("ValidationError", "No updates are to be performed.")
        self._run_update(stack, template, text, parameters)
        return {"StackId": stack.id}

    def _prepare(self, region: str, p: dict[str, Any]) -> tuple[FakeStack, str, dict[str, Any], dict[str, str]]:
        stack = self._find(region, p["StackName"])
        if stack.status not in ("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE"):
            raise AwsFault("ValidationError", f"Stack:{stack.id} is in {stack.status} state and can not be updated.")
        text = stack.text if p.get("UsePreviousTemplate") else p["TemplateBody"]
        template, parameters = read(text, region, p.get("Parameters", []), stack.parameters, p.get("Capabilities", []))
        return stack, text, template, parameters

    def _run_update(self, stack: FakeStack, template: dict[str, Any], text: str, parameters: dict[str, str]) -> None:
        engine = OperationRunner(self.world, stack)
        stack.status = "UPDATE_IN_PROGRESS"
        engine.start(engine.update, template, text, parameters)

    def continue_update_rollback(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        stack, skip = self._find(region, p["StackName"]), p.get("ResourcesToSkip", [])
        if stack.status != "UPDATE_ROLLBACK_FAILED":
            raise AwsFault(
                "ValidationError", f"Stack:{stack.id} is in {stack.status} state and can not continue rollback"
            )
        for name in skip:
            if name not in stack.resources or stack.resources[name].status != "UPDATE_FAILED":
                raise AwsFault(
                    "ValidationError", f"Resource {name} is not in UPDATE_FAILED state and cannot be skipped"
                )
        engine = OperationRunner(self.world, stack)
        stack.status = "UPDATE_ROLLBACK_IN_PROGRESS"
        engine.start(engine.continue_roll_back, skip)
        return {}

    def create_change_set(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        if p.get("ChangeSetType", "UPDATE") != "UPDATE":
            raise AwsFault(
                "ValidationError", f"this fake makes change sets of type UPDATE only, not {p['ChangeSetType']}"
            )
        stack, text, template, parameters = self._prepare(region, p)
        changes = differences(stack, template, parameters)
        name, arn = p["ChangeSetName"], f"{stack.id.replace(':stack/', ':changeSet/')}-{p['ChangeSetName']}"
        stack.change_sets[name] = {
            "id": arn,
            "changes": changes,
            "text": text,
            "template": template,
            "parameters": parameters,
            "status": "CREATE_COMPLETE" if changes else "FAILED",
            "reason": "" if changes else NO_CHANGES,
        }
        return {"Id": arn, "StackId": stack.id}

    def _change_set(self, region: str, p: dict[str, Any]) -> tuple[FakeStack, str, dict[str, Any]]:
        stack = self._find(region, p["StackName"])
        for name, change in stack.change_sets.items():
            if p["ChangeSetName"] in (name, change["id"]):
                return stack, name, change
        raise AwsFault("ChangeSetNotFound", f"ChangeSet [{p['ChangeSetName']}] does not exist")

    def describe_change_set(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        stack, name, change = self._change_set(region, p)
        items, token = page(change["changes"], p, self.world.page_size)
        return {
            "ChangeSetName": name,
            "ChangeSetId": change["id"],
            "StackId": stack.id,
            "StackName": stack.name,
            "Status": change["status"],
            "StatusReason": change["reason"],
            "ExecutionStatus": "AVAILABLE" if change["changes"] else "UNAVAILABLE",
            "Changes": items,
            **token,
        }

    def execute_change_set(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        stack, _, change = self._change_set(region, p)
        if change["status"] != "CREATE_COMPLETE":
            raise AwsFault(
                "InvalidChangeSetStatus",
                f"ChangeSet [{change['id']}] cannot be executed in its current status of [{change['status']}]",
            )
        stack.change_sets.clear()
        self._run_update(stack, change["template"], change["text"], change["parameters"])
        return {}

    def delete_change_set(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        stack, name, _ = self._change_set(region, p)
        del stack.change_sets[name]
        return {}

    def describe_stacks(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        if name := p.get("StackName"):
            return {"Stacks": [_stack(self._find(region, name))]}
        live = [_stack(s) for s in self.world.stacks.values() if s.region == region and s.status != "DELETE_COMPLETE"]
        items, token = page(live, p, self.world.page_size)
        return {"Stacks": items, **token}

    def describe_stack_events(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        items, token = page(self._find(region, p["StackName"]).events, p, self.world.page_size)
        return {"StackEvents": items, **token}

    def describe_stack_resources(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        stack = self._find(region, p["StackName"])
        return {
            "StackResources": [
                {**_resource(r), "StackId": stack.id, "StackName": stack.name, "Timestamp": r.time}
                for r in stack.resources.values()
            ]
        }

    def describe_stack_resource(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        stack = self._find(region, p["StackName"])
        if p["LogicalResourceId"] not in stack.resources:
            raise AwsFault(
                "ValidationError", f"Resource {p['LogicalResourceId']} does not exist for stack {stack.name}"
            )
        found = stack.resources[p["LogicalResourceId"]]
        return {
            "StackResourceDetail": {
                **_resource(found),
                "StackId": stack.id,
                "StackName": stack.name,
                "LastUpdatedTimestamp": found.time,
            }
        }

    def list_stack_resources(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        found = [
            {**_resource(r), "LastUpdatedTimestamp": r.time}
            for r in self._find(region, p["StackName"]).resources.values()
        ]
        items, token = page(found, p, self.world.page_size)
        return {"StackResourceSummaries": items, **token}

    def list_stacks(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        wanted = p.get("StackStatusFilter", [])
        found = [
            {"StackId": s.id, "StackName": s.name, "CreationTime": s.created, "StackStatus": s.status}
            for s in self.world.stacks.values()
            if s.region == region and (not wanted or s.status in wanted)
        ]
        items, token = page(found, p, self.world.page_size)
        return {"StackSummaries": items, **token}

    def get_template(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        return {"TemplateBody": self._find(region, p["StackName"]).text, "StagesAvailable": ["Original"]}

    def validate_template(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        template, _ = read(p["TemplateBody"], region, [], {}, ["CAPABILITY_IAM"])
        return {"Description": template.get("Description", ""), "Capabilities": ["CAPABILITY_IAM"]}

    def update_termination_protection(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        stack = self._find(region, p["StackName"])
        stack.protected = bool(p["EnableTerminationProtection"])
        return {"StackId": stack.id}

    def signal_resource(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        stack, logical = self._find(region, p["StackName"]), p["LogicalResourceId"]
        if logical not in stack.resources:
            raise AwsFault("ValidationError", f"Resource {logical} does not exist for stack {stack.name}")
        if logical not in stack.waiting:
            raise AwsFault(
                "ValidationError",
                f"Resource {logical} is in {stack.resources[logical].status} state and cannot be signaled",
            )
        stack.signals[logical].setdefault(p["UniqueId"], p["Status"])
        stack.say(
            "CREATE_IN_PROGRESS",
            f"Received {p['Status']} signal with UniqueId {p['UniqueId']}",
            stack.resources[logical],
        )
        self.world.touch()
        return {}


def _stack(s: FakeStack) -> dict[str, Any]:
    return {
        "StackId": s.id,
        "StackName": s.name,
        "CreationTime": s.created,
        "StackStatus": s.status,
        "Outputs": s.outputs,
        "Tags": s.tags,
        "Parameters": [{"ParameterKey": k, "ParameterValue": v} for k, v in s.parameters.items()],
        "Capabilities": ["CAPABILITY_IAM"],
        "EnableTerminationProtection": s.protected,
        "DisableRollback": s.on_failure == "DO_NOTHING",
        **({"StackStatusReason": s.reason} if s.reason else {}),
    }


def _resource(r: LogicalResource) -> dict[str, Any]:
    return {
        "LogicalResourceId": r.logical,
        "PhysicalResourceId": r.physical,
        "ResourceType": r.kind,
        "ResourceStatus": r.status,
        **({"ResourceStatusReason": r.reason} if r.reason else {}),
    }
