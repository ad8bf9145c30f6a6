"""Auto Scaling client of the guard on the master: the standard library only, on AWS's own clock.

AWS refuses a request that is signed by a wrong clock, and a wrong clock would end the cluster too late or too early.
The date of every answer, also of a refusal, therefore gives the offset of this machine's clock.
"""

from __future__ import annotations

import calendar
import contextlib
import datetime
import email.utils
import hashlib
import hmac
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster.guard.onhost.history import Past, past
from cluster.guard.onhost.policy import GuardLimits

ACTION = "dlami-guard"  # the name of the scheduled action
TAG = "dlami-cluster:guard"  # tag of the groups that holds the terms
_LIMIT_S = 20.0
_VERSION = "2011-01-01"
_UTC = datetime.timezone.utc  # noqa: UP017 - Python 3.9
_PAGES = 20  # pages of a hundred activities per group, the newest first


class Refused(Exception):
    """Error: AWS refused a request or did not answer. The text is the reason."""


class HalfSet(Refused):
    """Error: AWS accepted a scheduled end for only one of the two groups. The text names the other and the reason."""


@dataclass(frozen=True)
class GroupStates:
    """Terms and instances of the master's and the workers' group, as Auto Scaling describes them."""

    terms: GuardLimits
    instances: tuple[str, ...]  # the master's group's first
    masters: int = 0  # how many of them are in the master's group
    until: float | None = None  # the scheduled end, if the terms are off


class Api:
    """Auto Scaling client for the groups of one cluster in one region."""

    def __init__(self, region: str, cluster: str) -> None:
        self._region, self._names = region, (f"{cluster}-master", f"{cluster}-workers")
        self.offset_s = 0.0  # AWS's clock minus this machine's
        self.has_answered = False

    def now(self) -> float:
        """Return AWS's time in seconds since 1970, or this machine's time until AWS has answered."""
        return time.time() + self.offset_s

    def groups(self) -> GroupStates:
        """Return the guard's terms and the instances of both groups. Raises Refused."""
        names = {f"AutoScalingGroupNames.member.{n}": name for n, name in enumerate(self._names, 1)}
        try:
            found = ElementTree.fromstring(self._ask("DescribeAutoScalingGroups", names))
        except ElementTree.ParseError as e:
            raise Refused(f"DescribeAutoScalingGroups: the answer is no XML: {e}") from None
        tags = [(_text(t, "Key"), _text(t, "Value")) for t in _all(found, "Tags")]
        said = [value for key, value in tags if key == TAG]
        if not said:
            raise Refused(f"the groups {', '.join(self._names)} have no tag {TAG}")
        held = {_text(g, "AutoScalingGroupName"): _all(g, "Instances") for g in _all(found, "AutoScalingGroups")}
        given = terms(said[0])
        return GroupStates(
            terms=given,
            until=None if given.hold_a_lease else self._until(),
            instances=tuple(_text(i, "InstanceId") for name in self._names for i in held.get(name, ())),
            masters=len(held.get(self._names[0], ())),
        )

    def past(self, now: GroupStates) -> Past:
        """Return what the scaling activities of both groups record up to now. Raises Refused."""
        told = [self._activities(name) for name in self._names]
        alive = now.instances[: now.masters], now.instances[now.masters :]
        return past(told[0], told[1], alive, datetime.datetime.fromtimestamp(self.now(), _UTC))

    def put(self, at: float) -> None:
        """Schedule both groups to shrink to zero instances at this time. Raises Refused, or HalfSet.

        A refusal of one group does not keep the other from its end.
        """
        start = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(at)))
        sizes = {"MinSize": "0", "MaxSize": "0", "DesiredCapacity": "0"}
        refused = []
        for name in reversed(self._names):
            asked = {"AutoScalingGroupName": name, "ScheduledActionName": ACTION, "StartTime": start, **sizes}
            try:
                self._ask("PutScheduledUpdateGroupAction", asked)
            except Refused as e:
                refused.append(f"the end of {name} is not set: {e}")
        if refused:
            raise (HalfSet if len(refused) < len(self._names) else Refused)("; ".join(refused))

    def _until(self) -> float | None:
        """Return the earliest scheduled end of the two groups; None if none is scheduled. Raises Refused."""
        found: list[float] = []
        for name in self._names:
            asked = {"AutoScalingGroupName": name, "ScheduledActionNames.member.1": ACTION}
            try:
                answer = ElementTree.fromstring(self._ask("DescribeScheduledActions", asked))
                times = [_text(one, "StartTime") for one in _all(answer, "ScheduledUpdateGroupActions")]
                found += [datetime.datetime.fromisoformat(at.replace("Z", "+00:00")).timestamp() for at in times]
            except (ElementTree.ParseError, ValueError) as e:
                raise Refused(f"DescribeScheduledActions: the answer is no schedule: {e}") from None
        return min(found, default=None)

    def _activities(self, group: str) -> list[dict[str, Any]]:
        """Return a group's scaling activities as DescribeScalingActivities has them. Raises Refused."""
        found: list[dict[str, Any]] = []
        asked = {"AutoScalingGroupName": group}
        for _ in range(_PAGES):
            try:
                answer = ElementTree.fromstring(self._ask("DescribeScalingActivities", asked))
                found += [_activity(one) for one in _all(answer, "Activities")]
            except (ElementTree.ParseError, ValueError) as e:
                raise Refused(f"DescribeScalingActivities: the answer is no history: {e}") from None
            token = next((one.text or "" for one in answer.iter() if _name(one) == "NextToken"), "")
            if not token:
                break
            asked = {**asked, "NextToken": token}
        return found

    def _ask(self, action: str, given: Mapping[str, str]) -> str:
        """Send a request and return the body of the answer. Raises Refused.

        If AWS refuses a request because of its time, it is sent once more with AWS's clock.
        """
        for is_last in (False, True):
            before = self.offset_s
            try:
                with urllib.request.urlopen(self._request(action, given), timeout=_LIMIT_S) as answer:
                    self._heed(answer.headers.get("Date"))
                    return str(answer.read(4 << 20).decode())
            except urllib.error.HTTPError as e:
                self._heed(e.headers.get("Date"))
                said = e.read(4096).decode(errors="replace")
                if is_last or abs(self.offset_s - before) < 60:
                    raise Refused(f"{action}: {_message(said) or f'HTTP {e.code}'}") from None
            except (OSError, ValueError) as e:
                raise Refused(f"{action}: {e}") from None
        raise AssertionError

    def _heed(self, date: str | None) -> None:
        at = email.utils.parsedate(date or "")
        if at:
            offset = calendar.timegm(at) - time.time()
            self.has_answered = True
            self.offset_s = offset if abs(offset) > 2 else 0.0  # the date has a resolution of one second

    def _request(self, action: str, given: Mapping[str, str]) -> urllib.request.Request:
        """Build a request with an AWS signature, version 4.

        Source: IAM User Guide, "Create a signed AWS API request".
        """
        base = os.environ.get("AWS_ENDPOINT_URL") or f"https://autoscaling.{self._region}.{_domain(self._region)}"
        body = urllib.parse.urlencode({"Action": action, "Version": _VERSION, **given}).encode()
        key, secret, token = _credentials()
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self.now()))
        head = {"host": urllib.parse.urlsplit(base).netloc, "x-amz-date": now}
        if token:
            head["x-amz-security-token"] = token
        names = ";".join(sorted(head))
        lines = [f"{name}:{head[name]}" for name in sorted(head)]
        canonical = "\n".join(["POST", "/", "", *lines, "", names, hashlib.sha256(body).hexdigest()])
        scope = f"{now[:8]}/{self._region}/autoscaling/aws4_request"
        text = "\n".join(["AWS4-HMAC-SHA256", now, scope, hashlib.sha256(canonical.encode()).hexdigest()])
        sign = f"AWS4{secret}".encode()
        for part in (*scope.split("/"), text):
            sign = hmac.new(sign, part.encode(), hashlib.sha256).digest()
        signature = f"AWS4-HMAC-SHA256 Credential={key}/{scope}, SignedHeaders={names}, Signature={sign.hex()}"
        kind = "application/x-www-form-urlencoded; charset=utf-8"
        return urllib.request.Request(
            base.rstrip("/") + "/", data=body, headers={**head, "Authorization": signature, "Content-Type": kind}
        )


def terms(text: str) -> GuardLimits:
    """Parse the terms in the groups' tag; a value that is no number counts as off.

    Raises Refused if there are no terms.
    """
    found = dict(part.split("=", 1) for part in text.split() if "=" in part)
    if not found:
        raise Refused(f"the tag {TAG} says {text!r}, which are no terms")
    known: dict[str, Any] = {}
    for name in ("idle_minutes", "max_hours", "budget_usd", "usd_per_hour", "master_usd_per_hour"):
        known[name] = _number(found.get(name, "0"))
    ends = found.get("block_ends", "")
    with contextlib.suppress(ValueError):
        known["block_ends"] = float(calendar.timegm(time.strptime(ends, "%Y-%m-%dT%H:%M:%SZ")))
    return GuardLimits(**known)


def _activity(one: ElementTree.Element) -> dict[str, Any]:
    """Parse one scaling activity. Raises ValueError if a time in it is malformed."""
    said = {name: _text(one, name) for name in ("Description", "Cause", "StatusCode")}
    times = {name: _text(one, name).replace("Z", "+00:00") for name in ("StartTime", "EndTime")}
    return {**said, **{name: datetime.datetime.fromisoformat(at) for name, at in times.items() if at}}


def _number(text: str) -> float:
    try:
        return max(0.0, float(text))
    except ValueError:
        return 0.0


def _credentials() -> tuple[str, str, str]:
    """Return key, secret and session token, from the environment or else of the instance's role. Raises OSError."""
    e = os.environ
    if e.get("AWS_ACCESS_KEY_ID"):
        return e["AWS_ACCESS_KEY_ID"], e["AWS_SECRET_ACCESS_KEY"], e.get("AWS_SESSION_TOKEN", "")
    token = _metadata("api/token", "PUT", {"X-aws-ec2-metadata-token-ttl-seconds": "300"})
    head = {"X-aws-ec2-metadata-token": token}
    folder = "meta-data/iam/security-credentials/"
    said = json.loads(_metadata(folder + _metadata(folder, "GET", head).split()[0], "GET", head))
    return said["AccessKeyId"], said["SecretAccessKey"], said["Token"]


def _metadata(path: str, method: str, head: dict[str, str]) -> str:
    base = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or "http://169.254.169.254"
    request = urllib.request.Request(f"{base.rstrip('/')}/latest/{path}", headers=head, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=5) as answer:
        return str(answer.read(65536).decode())


def _domain(region: str) -> str:
    return "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"


def _all(found: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    """Return the members of every list with that name."""
    return [m for one in found.iter() if _name(one) == name for m in one if _name(m) == "member"]


def _text(one: ElementTree.Element, name: str) -> str:
    return next((c.text or "" for c in one if _name(c) == name), "")


def _name(one: ElementTree.Element) -> str:
    return one.tag.rpartition("}")[2]


def _message(said: str) -> str:
    try:
        found = ElementTree.fromstring(said)
    except ElementTree.ParseError:
        return ""
    words = {_name(one): one.text or "" for one in found.iter()}
    return ": ".join(filter(None, (words.get("Code", ""), words.get("Message", ""))))
