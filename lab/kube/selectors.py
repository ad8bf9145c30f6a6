"""Selectors of objects: by label (`app=web,tier in (a,b),!old`) and by field (`metadata.name=web`)."""

import re
from collections.abc import Mapping
from typing import Any

from lab.kube.kinds import Document

_SET = re.compile(r"^(?P<key>\S+) +(?P<verb>in|notin) +\((?P<values>[^)]*)\)$")


def chosen(document: Document, labels: str = "", fields: str = "") -> bool:
    """Return True if both selectors match the object. An empty selector matches every object."""
    given = document["metadata"].get("labels") or {}
    return all(_label(given, word) for word in _words(labels)) and all(_field(document, w) for w in _words(fields))


def has_labels(document: Document, wanted: Mapping[str, str]) -> bool:
    """Return True if the object has all these labels, as for `matchLabels` and a Service's selector."""
    given = document["metadata"].get("labels") or {}
    return all(given.get(key) == value for key, value in wanted.items())


def _words(selector: str) -> list[str]:
    """Split a selector at commas that are not in parentheses."""
    return [w.strip() for w in re.split(r",(?![^(]*\))", selector) if w.strip()]


def _label(given: Mapping[str, str], word: str) -> bool:
    if found := _SET.match(word):
        values = {v.strip() for v in found["values"].split(",")}
        return (given.get(found["key"]) in values) is (found["verb"] == "in")
    if word.startswith("!"):
        return word[1:] not in given
    if "!=" in word:
        key, _, value = word.partition("!=")
        return given.get(key.strip()) != value.strip()
    if "=" in word:
        key, _, value = word.replace("==", "=").partition("=")
        return given.get(key.strip()) == value.strip()
    return word in given


def _field(document: Document, word: str) -> bool:
    unequal = "!=" in word
    key, _, value = word.replace("!=", "=").replace("==", "=").partition("=")
    found: Any = document
    for part in key.strip().split("."):
        found = found.get(part, "") if isinstance(found, dict) else ""
    return (str(found) == value.strip()) is not unequal
