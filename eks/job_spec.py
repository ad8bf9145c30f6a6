"""Order of a job, as the operator's MPIJob carries it to the launcher pod. The launcher adds the hosts."""

import dataclasses
import json
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster.errors import ConfigError
from cluster.jobs.spec import JobSpec
from cluster.typed import from_json

ORDER_VARIABLE = "DLAMI_ORDER"  # of the launcher's container: the order as JSON
_LONGEST = 63 - len("-worker-63")  # a pod's name is also its host name, which has 63 characters at most


@dataclass(frozen=True, kw_only=True)
class Order:
    """Request of one `inv eks.train.*`: the job's specification without hosts, and its place in the cluster."""

    job: str  # its id, which is the MPIJob's name
    submission: str  # new each time an operator starts the job; a failed job runs again only with a new one
    spec: JobSpec
    from_scratch: bool = False  # its first attempt may begin at step 0 if no checkpoint can be read
    skip_unfit: bool = False
    shared: str = "/efs"
    notify: str = ""
    results: str = ""

    def to_json(self) -> str:
        """Return the order as readable JSON without fields that have their default."""
        return json.dumps(_without_defaults(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Order":
        """Parse an order. Raises ConfigError if the text is not one."""
        try:
            return from_json(cls, _from_flat(json.loads(text)))
        except ValueError as e:
            raise ConfigError(f"{ORDER_VARIABLE} of this pod is no order: {e}") from e


def _without_defaults(value: Any) -> dict[str, Any]:
    """Return a dataclass as JSON has it, without fields that have their default."""
    kept: dict[str, Any] = {}
    for f in dataclasses.fields(value):
        one = getattr(value, f.name)
        default = f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
        if one != default:
            kept[f.name] = _without_defaults(one) if dataclasses.is_dataclass(one) else one
    return kept


def _from_flat(raw: Any) -> Any:
    """Return an order in today's form. Documents that were rendered earlier have all of the request at the top."""
    if not isinstance(raw, Mapping) or "spec" in raw or "words" not in raw:
        return raw
    code = raw.get("code") or {}
    program = {"trainer": raw.get("module", ""), **{k: raw[k] for k in ("words", "per", "python") if k in raw}}
    return {**raw, "spec": {**raw, "program": program, "code": code.get("digest", ""), "below": code.get("below", "")}}


def new_id(name: str) -> str:
    """Return a job id that is also valid in host names, such as resnet50-20261120-231500-x7ab.

    Raises ConfigError for a name that cannot be part of one.
    """
    if not re.match(r"[a-z]", name):
        raise ConfigError(f"job name {name!r}: on Kubernetes it begins with a letter, it becomes a host's name")
    made = f"{name.rstrip('-')}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"
    assert len(made) <= _LONGEST
    return made
