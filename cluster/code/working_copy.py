"""Working copies of code on hosts, unpacked from each host's store. Nothing is sent to a host whose store has it."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cluster.broadcast.copy import Transfer, copy
from cluster.errors import ClusterError
from cluster.hosts import Host
from cluster.hostset import fold
from cluster.inventory import Cluster
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from cluster.ssh.program import ask, program

_PROGRAM = "cluster.code.onhost.working_copy"
_MAKING = Limits(total_s=600)  # a copy of thousands of files on a busy disk


class NotBrought(ClusterError):
    """Error for hosts that do not have the code, with the reasons."""

    def __init__(self, why: Mapping[str, str]) -> None:
        same: dict[str, list[str]] = {}
        for address, reason in why.items():
            same.setdefault(reason, []).append(address)
        super().__init__("\n".join(f"the code is not on {fold(hosts)}: {text}" for text, hosts in same.items()))
        self.why = dict(why)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Code that hosts must have: in their stores, and as a job's working copy if `folder` is given."""

    archive: str  # its path on the cluster's first host, from which it is broadcast
    content: str  # digest of its files
    folder: str = ""  # of the working copy
    files: Mapping[str, str] = field(default_factory=dict)  # texts of the job's other files, by path
    folders: Sequence[str] = ()  # other folders of the job


def provide(reach: Executor, cluster: Cluster, hosts: Sequence[Host], wanted: Wanted) -> int:
    """Provide the code on these hosts, and return to how many of them it was sent. Raises NotBrought.

    An existing working copy is left unchanged.
    """
    answers, why = _ask(reach, hosts, wanted, dict.fromkeys(hosts, wanted.archive))
    lacking = [h for h, said in answers.items() if not said["is_there"]]
    sent: dict[Host, str] = {}
    # Users' homes may differ, and a broadcast has one path for all.
    for archive in dict.fromkeys(answers[h]["archive"] for h in lacking):
        group = [h for h in lacking if answers[h]["archive"] == archive]
        place = f"{archive}.{secrets.token_hex(4)}.part"  # of this broadcast alone
        copied = copy(reach, cluster, group, Transfer(src=wanted.archive, dst=place))
        why |= {o.host.address: str(o.error) for o in copied.failed}
        sent |= {o.host: place for o in copied.outcomes if not o.error}
    answers, also = _ask(reach, list(sent), wanted, sent)
    damaged = {h.address: f"{wanted.archive} is damaged" for h, said in answers.items() if not said["is_there"]}
    if why := {**why, **also, **damaged}:
        raise NotBrought(why)
    return len(sent)


def _ask(
    reach: Executor, hosts: Sequence[Host], wanted: Wanted, sources: Mapping[Host, str]
) -> tuple[dict[Host, Any], dict[str, str]]:
    """Make each host unpack the code from its store. Return the answers, and the other hosts' errors by address."""
    if not hosts:
        return {}, {}
    asked = program(_PROGRAM, wanted.content, wanted.folder, dict(wanted.files), list(wanted.folders))
    results, answers = ask(reach, hosts, asked, lambda h: (sources[h],), limits=_MAKING)
    why = {h.address: answers[h].get("error") if h in answers else r.problem for h, r in results.items()}
    why = {address: str(text) for address, text in why.items() if text}
    return {h: said for h, said in answers.items() if h.address not in why}, why
