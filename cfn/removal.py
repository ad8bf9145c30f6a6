"""AWS API calls that remove a resource, made by us or printed as AWS CLI commands."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from botocore import xform_name
from botocore.exceptions import ClientError

from cfn.aws import Aws, asking, code_of
from cfn.progress import wait_for

_GOES_S = 600.0  # limit on repeating a call: deleted NAT gateways and mount targets hold others for minutes
HELD = ("InUse", "DependencyViolation", "IncorrectState", "ResourceInUse", "ScalingActivityInProgress")
GONE = ("NotFound", "Unknown", "NoSuchEntity")


@dataclass(frozen=True)
class ApiCall:
    """AWS API call: service, operation as boto3 names it, and arguments."""

    service: str
    operation: str
    arguments: dict[str, Any]
    then_waits_s: int = 0
    """Seconds that the printed command sleeps, because it cannot check when the next call becomes possible."""

    def command(self, region: str) -> str:
        """Return the same call as an AWS CLI command."""
        words = ["aws", self.service, self.operation.replace("_", "-"), "--region", region]
        for name, value in self.arguments.items():
            words += [f"--{xform_name(name, '-')}", *([] if value is True else map(str, _listed(value)))]
        text = shlex.join(words)
        return f"{text} && sleep {self.then_waits_s}" if self.then_waits_s else text

    def run(self, aws: Aws, what: str, wait_s: float = _GOES_S) -> None:
        """Make the call, and repeat it while something that is being deleted still holds the resource.

        A resource that is already gone counts as removed. Raises AwsError if AWS refuses.
        """
        with asking(f"removing {what}"):
            if not wait_for(lambda: self._try(aws), wait_s, lambda: None):
                self._call(aws)  # raises AWS's refusal

    def _try(self, aws: Aws) -> bool:
        try:
            self._call(aws)
        except ClientError as e:
            if any(word in code_of(e) for word in GONE):
                return True
            if not any(word in code_of(e) for word in HELD):
                raise
            return False
        return True

    def _call(self, aws: Aws) -> None:
        getattr(aws.client(self.service), self.operation)(**self.arguments)


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]
