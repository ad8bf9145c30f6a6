"""HTML builder that escapes every text: only this module's own elements become markup, whatever a job wrote."""

import html
import re
from collections.abc import Mapping, Sequence

# Control and bidirectional characters, which could make a text look like another one.
_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9:-]*")
_VOID = frozenset({"br", "img", "meta", "rect", "line", "path", "col"})


class Markup(str):
    """Text that is markup already; only this module may make it from other text."""

    __slots__ = ()


def text(value: object) -> Markup:
    """Return a value as escaped text."""
    return value if isinstance(value, Markup) else _escaped(value)


def _escaped(value: object) -> Markup:
    return Markup(html.escape(_UNSEEN.sub("\ufffd", str(value))))


def tag(name: str, /, *content: object, **attributes: object) -> Markup:
    """Return an element. `class_` is `class`, `aria_label` is `aria-label`; None and False are left out."""
    assert _NAME.fullmatch(name)
    written = []
    for key, value in attributes.items():
        key = key.rstrip("_").replace("_", "-")
        assert _NAME.fullmatch(key)
        if value is None or value is False:
            continue
        written.append(f" {key}" if value is True else f' {key}="{_escaped(value)}"')
    start = f"<{name}{''.join(written)}>"
    if name in _VOID:
        return Markup(start if name not in ("rect", "line", "path") else f"{start[:-1]}/>")
    return Markup(f"{start}{joined(*content)}</{name}>")


def joined(*content: object) -> Markup:
    """Concatenate the contents; None is left out."""
    return Markup("".join(text(one) for one in content if one is not None))


def table(
    caption: str, titles: Sequence[str], rows: Sequence[Sequence[object]], *, numbers: frozenset[int] = frozenset()
) -> Markup:
    """Return a table that scrolls by itself if it is too wide. numbers: columns that are aligned at the right."""

    def cells(row: Sequence[object], element: str) -> Markup:
        first = {"scope": "col"} if element == "th" else {}
        made = []
        for n, cell in enumerate(row):
            own = {"class_": "n"} if n in numbers else {}
            is_head = n == 0 and element == "td"
            made.append(tag("th" if is_head else element, cell, **({"scope": "row"} if is_head else first), **own))
        return tag("tr", *made)

    body = tag(
        "table",
        tag("caption", caption),
        tag("thead", cells(titles, "th")),
        tag("tbody", *(cells(row, "td") for row in rows)),
    )
    return tag("div", body, class_="scroll", tabindex="0", role="region", aria_label=caption)


def facts(rows: Mapping[str, object]) -> Markup:
    """Return names with their values as a list; empty values are left out."""
    return tag("dl", *(joined(tag("dt", name), tag("dd", value)) for name, value in rows.items() if value))
