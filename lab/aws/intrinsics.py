"""Intrinsic functions of templates, and the order in which resources depend on each other."""

import base64
import graphlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lab.aws.protocol import AwsFault

FUNCTIONS = ("Ref", "Fn::GetAtt", "Fn::Sub", "Fn::Join", "Fn::FindInMap", "Fn::Base64", "Fn::Select", "Fn::Split")


_NOTHING = object()


def resolve(
    value: Any, ref: Callable[[str], Any], attribute: Callable[[str, str], Any], mappings: dict[str, Any]
) -> Any:
    """Return a template value with its functions applied. `AWS::NoValue` removes its key or list entry."""
    return _Resolver(ref, attribute, mappings).walk(value)


@dataclass(frozen=True)
class _Resolver:
    """Evaluator of a template value's functions, with the lookups it may use."""

    ref: Callable[[str], Any]
    attribute: Callable[[str, str], Any]
    mappings: dict[str, Any]

    def walk(self, node: Any) -> Any:
        if isinstance(node, list):
            return [v for v in map(self.walk, node) if v is not _NOTHING]
        if not isinstance(node, dict):
            return node
        if len(node) == 1 and (name := next(iter(node))) in FUNCTIONS:
            return self._apply(name, node[name])
        if any(k.startswith("Fn::") for k in node):
            raise AwsFault("ValidationError", f"this fake does not know the function in {sorted(node)}")
        return {k: v for k, v in ((k, self.walk(v)) for k, v in node.items()) if v is not _NOTHING}

    def _apply(self, name: str, argument: Any) -> Any:
        if name == "Ref":
            return _NOTHING if argument == "AWS::NoValue" else self.ref(argument)
        if name == "Fn::GetAtt":
            logical, attr = argument.split(".", 1) if isinstance(argument, str) else argument
            return self.attribute(logical, attr)
        if name == "Fn::Sub":
            return self._substitute(argument)
        if name == "Fn::FindInMap":
            first, second, third = map(self.walk, argument)
            return self.mappings[first][second][third]
        value = self.walk(argument)
        if name == "Fn::Join":
            return value[0].join(map(str, value[1]))
        if name == "Fn::Base64":
            return base64.b64encode(value.encode()).decode()
        if name == "Fn::Select":
            return value[1][int(value[0])]
        return value[1].split(value[0])

    def _substitute(self, argument: Any) -> str:
        text, given = (argument, {}) if isinstance(argument, str) else argument
        extra = {k: self.walk(v) for k, v in given.items()}

        def one(match: re.Match[str]) -> str:
            name = match[1]
            if name.startswith("!"):
                return "${" + name[1:] + "}"
            if name in extra:
                return str(extra[name])
            return str(self.attribute(*name.split(".", 1)) if "." in name and "::" not in name else self.ref(name))

        return re.sub(r"\$\{([^}]+)\}", one, text)


def references(node: Any) -> set[str]:
    """Return the names that a template value refers to."""
    if isinstance(node, list):
        return set().union(*map(references, node)) if node else set()
    if not isinstance(node, dict):
        return set()
    found = set()
    for key, value in node.items():
        if key == "Ref":
            found.add(value)
        elif key == "Fn::GetAtt":
            found.add(value.split(".")[0] if isinstance(value, str) else value[0])
        elif key == "Fn::Sub":
            text = value if isinstance(value, str) else value[0]
            found |= {m.split(".")[0] for m in re.findall(r"\$\{([^!}][^}]*)\}", text)}
            found |= set() if isinstance(value, str) else references(value[1])
        else:
            found |= references(value)
    return found


def creation_order(resources: dict[str, Any]) -> list[str]:
    """Return the logical ids, each after everything it depends on. Raises AwsFault for a cycle or an unknown name."""
    graph = {}
    for logical, body in resources.items():
        explicit = body.get("DependsOn", [])
        needs = references(body.get("Properties", {})) | set([explicit] if isinstance(explicit, str) else explicit)
        unknown = set([explicit] if isinstance(explicit, str) else explicit) - set(resources)
        if unknown:
            raise AwsFault(
                "ValidationError",
                f"Template format error: Unresolved resource dependencies {sorted(unknown)} in the Resources block",
            )
        graph[logical] = needs & set(resources)
    try:
        return list(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as e:
        raise AwsFault("ValidationError", f"Circular dependency between resources: {e.args[1]}") from e
