"""HTML page of one job: a single file that needs no network."""

import base64
import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path

from cluster.jobs.master.facts import JobFacts
from cluster.report import attempts, curve_charts, sections, slow_ranks
from cluster.report.markup import Markup, joined, tag

MOST_BYTES = 500_000
_PARTS: tuple[tuple[str, str, Callable[[JobFacts], Markup | None]], ...] = (
    ("attempts", "Attempts", lambda found: attempts.attempts(found.view)),
    ("curves", "Curves", curve_charts.charts),
    ("ranks", "Ranks by time", slow_ranks.rank_map),
    ("hosts", "Hosts", sections.hosts),
    ("pictures", "Pictures", sections.pictures),
    ("checkpoints", "Checkpoints", sections.checkpoints),
    ("command", "Command and versions", sections.command),
    ("difference", "Difference of the code", sections.difference),
    ("log", "End of the log", sections.tail),
)


def page(found: JobFacts) -> str:
    """Return the page of one job, at most MOST_BYTES long if dropping pictures suffices."""
    made = _page(found)
    while len(made.encode()) > MOST_BYTES and found.pictures:
        left = found.pictures_left + 1
        found = dataclasses.replace(found, pictures=found.pictures[:-1], pictures_left=left)
        made = _page(found)
    return made


def _page(found: JobFacts) -> str:
    parts = [(anchor, title, made) for anchor, title, make in _PARTS if (made := make(found))]
    return document(found.view.id, sections.head(found), parts, f"As it was at {found.made}.")


def document(title: str, lead: Markup, parts: list[tuple[str, str, Markup]], note: str) -> str:
    """Return a whole HTML file.

    lead: what comes below the title. parts: anchor, title and content of each.
    """
    script, style = _own("page.js"), _own("page.css")
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{allowed}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Markup(style)),
    )
    links = (tag("li", tag("a", name, href=f"#{anchor}")) for anchor, name, _ in parts)
    main = tag(
        "main",
        tag("h1", title),
        lead,
        tag("nav", tag("ul", *links), aria_label="Parts of this page"),
        *(_section(*part) for part in parts),
    )
    foot = tag("footer", tag("p", note, class_="note"))
    body = tag("body", main, foot, tag("script", Markup(script)))
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _section(anchor: str, title: str, content: Markup) -> Markup:
    tools = _tools() if anchor == "curves" else None
    return tag("section", tag("h2", title, id=f"h-{anchor}"), tools, content, id=anchor, aria_labelledby=f"h-{anchor}")


def _tools() -> Markup:
    """Return the zoom instructions and the reset button, which the script shows."""
    help_ = "Drag over a chart, or press + and - on one, to zoom all; arrows read values. "
    return tag(
        "p",
        joined(help_, tag("button", "All steps", id="whole", type="button", disabled=True), " "),
        tag("span", "all steps", id="zoomed", aria_live="polite"),
        id="tools",
        class_="tools",
        hidden=True,
    )


def _own(name: str) -> str:
    return Path(__file__).with_name(name).read_text()
