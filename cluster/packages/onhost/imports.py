"""Check for modules that a program imports at its start and that are missing, by the interpreter that will run it.

`python -c THIS {"script": FILE} | {"module": NAME} | {"code": TEXT}`, in the folder in which the program starts; with
"launcher": NAME the module that starts it must exist, too.

Nothing of the program is run. Only certain failures count: an `import` at the top of a file, outside any `if` or `try`.
Files of the program that are imported this way are read, too. A program that changes the module search is not checked.
Nor is a module given by name that a special finder, instead of a folder on `sys.path`, provides.
"""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import Any

_CHANGES = {"path", "path_hooks", "meta_path", "modules", "addsitedir", "extend_path"}
_OWNERS = {"sys", "site", "pkgutil"}
_MOST_FILES = 200
_OURS = {"dlami"}  # installed beside every job's code


class Unjudged(Exception):
    """Error: the program itself decides where modules are found, so it cannot be checked."""


def missing(asked: dict[str, str], own: str) -> dict[str, Any]:
    """Return the missing modules by name, each with the file below `own`, the program's folder, that imports it."""
    found: dict[str, str] = {}
    try:
        launcher = asked.get("launcher", "")
        if launcher and not _is_found(launcher.partition(".")[0]):
            return {"missing": {launcher: ""}}
        if "module" in asked:
            if _is_found_otherwise(asked["module"].partition(".")[0]):
                raise Unjudged
            start = _file_of_module(asked["module"])
            if not start:
                return {"missing": {asked["module"]: ""}}
        else:
            start = asked.get("script", "")
        if start and not os.path.isfile(start):
            start = os.path.join(start, "__main__.py")
        _follow(asked.get("code"), start, own, found)
    except (Unjudged, SyntaxError, ValueError, OSError, RecursionError):
        return {"missing": {}}
    return {"missing": found}


def _follow(code: str | None, start: str, own: str, found: dict[str, str]) -> None:
    """Read a file, and the program's own files that it imports, and add missing modules to `found`."""
    waiting, seen = [(start, code)], {start}
    while waiting and len(seen) < _MOST_FILES:
        path, text = waiting.pop()
        if text is None:
            with open(path, "rb") as file:
                text = file.read().decode(errors="replace")
        tree = ast.parse(text)
        for name in imported(tree):
            top = name.partition(".")[0]
            if top in _OURS or top in found:
                continue
            if not _is_found(top):
                found[top] = os.path.relpath(os.path.realpath(path), os.path.realpath(own)) if path else ""
                continue
            spec = PathFinder.find_spec(top)
            origin = spec.origin if spec and spec.origin else ""
            if origin.endswith(".py") and _is_below(origin, own) and origin not in seen:
                seen.add(origin)
                waiting.append((origin, None))


def imported(tree: ast.Module) -> Iterator[str]:
    """Yield the modules that a file imports unconditionally. Raises Unjudged if it changes how they are found."""
    if any(map(_changes_search, ast.walk(tree))):
        raise Unjudged
    for statement in tree.body:
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and not statement.level and statement.module:
            yield statement.module


def _changes_search(node: ast.AST) -> bool:
    """Return True if the node may change the module search: `sys.path`, or an alias of the module that has it."""
    if isinstance(node, ast.Attribute):
        return node.attr in _CHANGES and isinstance(node.value, ast.Name) and node.value.id in _OWNERS
    if isinstance(node, ast.ImportFrom):
        return node.module in _OWNERS and any(alias.name in _CHANGES for alias in node.names)
    return isinstance(node, ast.Import) and any(alias.name in _OWNERS and alias.asname for alias in node.names)


def _is_found(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ValueError, AttributeError, ImportError):  # already loaded, without a spec
        return True


def _is_found_otherwise(name: str) -> bool:
    """Return True if the module comes from no folder on `sys.path`, for example from an editable install's finder."""
    on_path = PathFinder.find_spec(name)
    try:
        spec = find_spec(name)
    except (ValueError, AttributeError, ImportError):
        return True
    return spec is not None and (on_path is None or on_path.origin != spec.origin)


def _file_of_module(name: str) -> str:
    """Return the file that `python -m NAME` runs; "" if it is not found. Its packages are not imported."""
    search: list[str] | None = None
    origin = ""
    for n in range(len(name.split("."))):
        spec = PathFinder.find_spec(".".join(name.split(".")[: n + 1]), search)
        if spec is None:
            return ""
        search = list(spec.submodule_search_locations or []) if spec.submodule_search_locations is not None else None
        origin = spec.origin or ""
        if search is None and n < len(name.split(".")) - 1:
            return ""
    if search is not None:
        inside = [os.path.join(folder, "__main__.py") for folder in search]
        return next((p for p in inside if os.path.isfile(p)), "")
    return origin


def _is_below(path: str, folder: str) -> bool:
    return os.path.realpath(path).startswith(os.path.realpath(folder) + os.sep)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
        sys.path[0] = os.path.dirname(os.path.abspath(given["script"])) if "script" in given else os.getcwd()
    print(json.dumps(missing(given, given["own"])))
