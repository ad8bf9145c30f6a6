"""IAM's evaluation of a role's own policies, as far as our statements use it; what it does not know is an error.

Source: IAM User Guide, "Policy evaluation logic" and "IAM JSON policy elements: Condition operators".
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Statement = dict[str, Any]


PREFIX = {
    **{"efs": "elasticfilesystem", "service-quotas": "servicequotas", "resourcegroupstaggingapi": "tag"},
    **{"elb": "elasticloadbalancing", "elbv2": "elasticloadbalancing"},
}
TAGGED = {"aws:ResourceTag/dlami-cluster:cluster": "demo", "ssm:resourceTag/dlami-cluster:cluster": "demo"}
VIA = {"aws:CalledVia": ["cloudformation.amazonaws.com"]}


@dataclass(frozen=True)
class Request:
    """One call on one resource, with what conditions may ask."""

    action: str
    resource: str
    context: Mapping[str, Any] = field(default_factory=dict)


def grants(statements: Iterable[Statement], request: Request) -> list[tuple[int, str]]:
    """Which allowing statements, by number, and which action patterns of theirs take it; [] for a refusal."""
    found: list[tuple[int, str]] = []
    for number, statement in enumerate(statements):
        extra = statement.keys() - {"Sid", "Effect", "Action", "Resource", "Condition"}
        assert not extra, f"not known to this evaluator: {extra}"
        actions = [a for a in listed(statement["Action"]) if _like(a, request.action, ignore_case=True)]
        fits = (
            actions
            and any(_like(_filled(r, request.context), request.resource) for r in listed(statement["Resource"]))
            and _holds(statement.get("Condition", {}), request.context)
        )
        if fits and statement["Effect"] == "Deny":
            return []
        if fits:
            found += [(number, a) for a in actions]
    return found


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _like(pattern: str, text: str, *, ignore_case: bool = False) -> bool:
    """`*` and `?` as IAM has them."""
    whole = "".join(".*" if c == "*" else "." if c == "?" else re.escape(c) for c in pattern)
    return re.fullmatch(whole, text, re.IGNORECASE if ignore_case else 0) is not None


def _holds(conditions: Mapping[str, Mapping[str, Any]], context: Mapping[str, Any]) -> bool:
    return all(
        _holds_one(operator, context.get(key), [_filled(str(w), context) for w in listed(wanted)])
        for operator, keys in conditions.items()
        for key, wanted in keys.items()
    )


def _holds_one(operator: str, value: Any, wanted: list[str]) -> bool:
    if operator == "ForAllValues:StringEquals":  # true where there is none, as IAM has it
        return all(v in wanted for v in listed(value or []))
    if operator == "ForAnyValue:StringEquals":
        return any(v in wanted for v in listed(value or []))
    if operator == "Null":
        return wanted == [str(value is None).lower()]
    if operator == "StringEquals":
        return value in wanted
    if operator == "Bool":
        return wanted == [str(value or "false").lower()]
    if operator == "NumericGreaterThan":  # false where the key is not there
        return value is not None and any(float(value) > float(w) for w in wanted)
    if operator == "ArnLike":  # each of the six parts for itself
        return value is not None and any(_arn_like(w, str(value)) for w in wanted)
    if operator == "StringLike":
        return value is not None and any(_like(w, str(value)) for w in wanted)
    raise AssertionError(f"not known to this evaluator: {operator}")


def _arn_like(pattern: str, arn: str) -> bool:
    wanted, parts = pattern.split(":", 5), arn.split(":", 5)
    return len(wanted) == len(parts) and all(map(_like, wanted, parts))


def _filled(text: str, context: Mapping[str, Any]) -> str:
    """With policy variables replaced; one that the request lacks matches nothing."""
    return re.sub(r"\$\{([\w:/-]+)\}", lambda m: str(context.get(m[1], "\0")), text)
