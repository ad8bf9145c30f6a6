"""Search of docs/troubleshooting.md for the cause and the remedy of a message, without a network."""

import re
from dataclasses import dataclass

from cluster.errors import ConfigError
from cluster.files import shipped

_PAGE = "docs/troubleshooting.md"
_SHOWN = 3
_LEAST_SHARE = 0.5  # of an entry's words: fewer are found in any sentence


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Row of the page: the message or the symptom, its cause and its remedy."""

    symptom: str
    cause: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.symptom}\n  cause   {self.cause}\n  remedy  {self.remedy}"


def find_entries(text: str) -> list[Entry]:
    """Return the entries whose message is part of the text; without one, the three that share most words with it.

    Raises ConfigError if no entry is near, or if the text has no word.
    """
    given = _plain(text)
    words = set(given.split())
    if not words:
        raise ConfigError('nothing to explain: inv explain "the message", as it was printed')
    entries = all_entries()
    if exact := [e for e in entries if any(_plain(part) in given for part in _quoted(e.symptom))]:
        return exact
    near = sorted(((_share(e, words), e) for e in entries), key=lambda found: -found[0])
    if found := [e for share, e in near[:_SHOWN] if share >= _LEAST_SHARE]:
        return found
    raise ConfigError(f"{_PAGE} has no entry for this; 'inv health' and 'inv jobs.logs last --errors' find most causes")


def all_entries() -> list[Entry]:
    """Return the rows of the page's tables, without the rows that head them."""
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", shipped(_PAGE).read_text(), re.MULTILINE)
    return [Entry(symptom=s, cause=c, remedy=r) for s, c, r in rows if s != "message or symptom"]


def _quoted(symptom: str) -> list[str]:
    return re.findall(r"`([^`]+)`", symptom)


def _share(entry: Entry, words: set[str]) -> float:
    """Return the share of the message's words that the text has, 0 to 1."""
    wanted = set(_plain(entry.symptom).split())
    return len(wanted & words) / len(wanted)


def _plain(text: str) -> str:
    """Return the text in small letters, its words one blank apart: a terminal may have broken its lines."""
    return " ".join(re.findall(r"[^\s`]+", text.lower()))
