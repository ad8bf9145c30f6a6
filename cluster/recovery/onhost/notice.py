"""Preemption notices from a host's metadata service, written to a file by a service that runs from first boot.

Python 3.9.

    python3 notice.py          looks every 5 s, for ever

The file holds one object: `kind`, `at` (seconds since 1970) and `text`. With kind spot, block or shutdown the host will
go. Kinds rebalance and maintenance are only reported. Without a notice there is no file.
"""

from __future__ import annotations

import calendar
import contextlib
import json
import os
import time
import urllib.error
import urllib.request
from typing import Any

FILE = "/run/dlami-notice.json"
LOOK_S = 5.0  # as AWS advises for spot instances, which are told two minutes before
_SELDOM_S = 60.0  # between queries for what is known long before
_AWAY_S = 60.0  # between queries where no metadata service answers
_TOKEN_S = 21600
_SOURCE = "instance metadata"
SPOT, REBALANCE = "meta-data/spot/instance-action", "meta-data/events/recommendations/rebalance"
MAINTENANCE, BLOCK_ENDS = "meta-data/events/maintenance/scheduled", "meta-data/tags/instance/dlami-cluster:ends"
_OFTEN, _SELDOM = (SPOT, REBALANCE), (MAINTENANCE, BLOCK_ENDS)
_LEAVING = ("spot", "block", "shutdown")
_ENDING = ("instance-stop", "instance-retirement", "instance-reboot", "system-reboot")  # codes of maintenance
_BLOCK_LEAD_S = 1800  # EC2 terminates a capacity block's instances from half an hour before its end


class Metadata:
    """Client of the metadata service (IMDSv2): sends a token, which it renews once the service refuses it."""

    def __init__(self, base: str = "") -> None:
        base = base or os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or "http://169.254.169.254"
        self._base = base.rstrip("/") + "/latest/"
        self._token = ""
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(self, path: str) -> str | None:
        """Return the answer for a path.

        Return None if there is nothing at it. Raises OSError if the service does not answer.
        """
        for _ in range(2):
            try:
                self._token = self._token or self._ask("PUT", "api/token", "token-ttl-seconds", str(_TOKEN_S))
                return self._ask("GET", path, "token", self._token)
            except urllib.error.HTTPError as e:
                if e.code == 404:
                    return None
                if e.code != 401:
                    raise
                self._token = ""
        raise OSError("the metadata service takes none of its own tokens")

    def _ask(self, method: str, path: str, name: str, value: str) -> str:
        head = {"X-aws-ec2-metadata-" + name: value}
        request = urllib.request.Request(self._base + path, headers=head, method=method)
        with self._opener.open(request, timeout=3) as answer:
            return str(answer.read(65536).decode(errors="replace"))


def notice(said: dict[str, str | None], now: float, booted: float) -> dict[str, Any] | None:
    """Return the most urgent notice in the answers. The host's end comes before notices that are only reported.

    said: answers by path. booted: when this host booted. A reboot that was announced for an earlier time has happened.
    """
    found = [*_spot(said.get(SPOT), now), *_maintenance(said.get(MAINTENANCE), booted), *_block(said.get(BLOCK_ENDS))]
    found += _rebalance(said.get(REBALANCE))
    found.sort(key=lambda one: (one["kind"] not in _LEAVING, one["at"]))
    return found[0] if found else None


def _spot(said: str | None, now: float) -> list[dict[str, Any]]:
    if said is None:
        return []
    told = _object(said)
    at = _time(told.get("time"), "%Y-%m-%dT%H:%M:%SZ")
    how = told.get("action", "terminate")
    text = f"EC2 takes this spot instance back ({how}) at {_clock(now if at is None else at)}"
    return [{"kind": "spot", "at": now if at is None else at, "text": text}]


def _rebalance(said: str | None) -> list[dict[str, Any]]:
    at = _time(_object(said).get("noticeTime"), "%Y-%m-%dT%H:%M:%SZ") if said else None
    text = "EC2 sees a raised risk that this spot instance is taken back"
    return [{"kind": "rebalance", "at": at, "text": text}] if at is not None else []


def _maintenance(said: str | None, booted: float) -> list[dict[str, Any]]:
    found = []
    for event in _list(said):
        at = _time(event.get("NotBefore"), "%d %b %Y %H:%M:%S GMT")
        if at is None or event.get("State", "active") != "active" or at < booted:
            continue
        code = str(event.get("Code", "maintenance"))
        text = f"EC2 has planned {code} of this instance for {_clock(at)}"
        found.append({"kind": "shutdown" if code in _ENDING else "maintenance", "at": at, "text": text})
    return found


def _block(said: str | None) -> list[dict[str, Any]]:
    ends = _time(said.strip(), "%Y-%m-%dT%H:%M:%SZ") if said else None
    if ends is None:
        return []
    text = f"its capacity block ends at {_clock(ends)}, EC2 ends its instances from half an hour before"
    return [{"kind": "block", "at": ends - _BLOCK_LEAD_S, "text": text}]


def _object(said: str) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        told = json.loads(said)
        if isinstance(told, dict):
            return told
    return {}


def _list(said: str | None) -> list[dict[str, Any]]:
    with contextlib.suppress(ValueError):
        told = json.loads(said or "[]")
        if isinstance(told, list):
            return [one for one in told if isinstance(one, dict)]
    return []


def _time(said: object, form: str) -> float | None:
    try:
        return float(calendar.timegm(time.strptime(str(said), form)))
    except (ValueError, OverflowError):
        return None


def _clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at))


class NoticePoller:
    """Poller of the metadata service that keeps the most urgent notice in the file."""

    def __init__(self, metadata: Metadata, file: str = FILE) -> None:
        self._metadata, self._file = metadata, file
        self._said: dict[str, str | None] = {}
        self._seldom = -_SELDOM_S
        self._booted = time.time() - time.monotonic()

    def look(self) -> float:
        """Query the service once. Return how many seconds to wait until the next query.

        While the service does not answer, the last notice stays in the file.
        """
        try:
            self._said.update({path: self._metadata.get(path) for path in _OFTEN})
            if time.monotonic() - self._seldom >= _SELDOM_S:
                self._said.update({path: self._metadata.get(path) for path in _SELDOM})
                self._seldom = time.monotonic()
        except (OSError, ValueError):
            return LOOK_S if self._said else _AWAY_S
        self._keep(notice(self._said, time.time(), self._booted))
        return LOOK_S

    def _keep(self, found: dict[str, Any] | None) -> None:
        """Write the notice to the file atomically. Remove the file without a notice.

        A file that another program wrote is not removed, but a new notice replaces it.
        """
        there = self._there()
        if found is None:
            if there.get("source") == _SOURCE:
                os.unlink(self._file)
            return
        if (there.get("kind"), there.get("text")) == (found["kind"], found["text"]):
            return
        fresh = self._file + ".new"
        with open(fresh, "w") as out:
            json.dump({**found, "source": _SOURCE}, out)
        os.chmod(fresh, 0o644)
        os.replace(fresh, self._file)

    def _there(self) -> dict[str, Any]:
        try:
            with open(self._file) as file:
                return _object(file.read())
        except OSError:
            return {}


def serve() -> None:
    """Poll for ever."""
    watch = NoticePoller(Metadata())
    while True:
        time.sleep(watch.look())


if __name__ == "__main__":
    serve()
