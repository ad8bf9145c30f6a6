"""Large code on each host's own disk: sent from the shared folder to one host, and broadcast from there."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cluster.copying.copy import Transfer, copy
from cluster.errors import ClusterError
from cluster.hosts import Host
from cluster.hostset import fold
from cluster.inventory import Cluster
from cluster.ssh.fanout import Reach
from cluster.ssh.limits import Limits
from cluster.ssh.marked import marked, said, trouble
from cluster.ssh.program import ask, program
from cluster.sync.onhost.content import TIME
from cluster.sync.onhost.own_disk import FOLDER, archive_in, copy_in, kept_in

_PROGRAM = "cluster.sync.onhost.own_disk"
_LOOK = Limits(total_s=60)
_MAKING = Limits(total_s=600)  # a copy of thousands of files on a busy disk
_KEEPING = Limits(connect_s=5, total_s=30)  # all files are read
_IS_THERE = "there"


class NotBrought(ClusterError):
    """Error for hosts that do not have the code, with the reasons."""

    def __init__(self, why: Mapping[str, str]) -> None:
        same: dict[str, list[str]] = {}
        for address, reason in why.items():
            same.setdefault(reason, []).append(address)
        super().__init__("\n".join(f"the code is not on {fold(hosts)}: {text}" for text, hosts in same.items()))
        self.why = dict(why)


@dataclass(frozen=True)
class Brought:
    """Paths of code on each host's own disk."""

    archive: str
    folder: str  # the job's copy; "" without one


def bring(reach: Reach, cluster: Cluster, hosts: Sequence[Host], archive: str, content: str, job: str = "") -> Brought:
    """Bring the code to these hosts' own disks. With a job, each host gets a copy for its ranks, else the archive.

    Nothing is sent to hosts that already have the content. Raises NotBrought.

    Args:
        archive: path on the cluster's first host, which sends it to the others.
    """
    head, wanted = cluster.master, {h.address for h in hosts}
    everybody = (head, *(h for h in hosts if h.address != head.address))
    looks = {h: marked(_look(content, job if h.address in wanted else "")) for h in everybody}
    results = reach.run(everybody, lambda h: looks[h], limits=_LOOK)
    why = {h.address: text for h, r in results.items() if (text := trouble(r))}
    if head.address in why:
        raise NotBrought({head.address: why[head.address]})
    found = {h: (said(r) or "").splitlines() for h, r in results.items() if h.address not in why}
    top = found[head][0]
    for host in (h for h, lines in found.items() if lines[0] != top):
        why[host.address] = f"code is in {found[host][0]}, and in {top} on {head}"
    lacking = [h for h in found if h.address in wanted - {*why} and _IS_THERE not in found[h]]
    made = Brought(archive=archive_in(top, content), folder=copy_in(top, job) if job else "")
    if why := why | _send(reach, cluster, lacking, archive, content, job, made):
        raise NotBrought(why)
    return made


def keep(reach: Reach, hosts: Sequence[Host], content: str, job: str) -> None:
    """Keep the copies of a job that has ended, if the job wrote nothing into them. The next job can then use them."""
    ask(reach, hosts, program(_PROGRAM, "keep", content, job), limits=_KEEPING)


def _look(content: str, job: str) -> str:
    """Return the shell command that prints the folder of code, and whether the host has this content.

    With a job, a kept copy becomes the job's. The command starts no Python, which would take most of the time until a
    job begins.
    """
    own, copied, kept = (
        shlex.quote(path) for path in (archive_in(".", content), copy_in(".", job), kept_in(".", content))
    )
    is_whole = f'[ -f {own} ] && [ ! -L {own} ] && [ "$(stat -c %Y {own})" = {TIME} ]'
    is_copied = f"{{ [ -d {copied} ] || mv -T {kept} {copied} 2>/dev/null; }} && touch -c {copied}"
    place = FOLDER.removeprefix("~/")
    look = f"if {is_copied if job else is_whole}; then echo {_IS_THERE}; fi"
    return f"umask 077; cd && mkdir -p {place}/jobs {place}/kept && cd {place} && pwd && {look}"


def _send(
    reach: Reach, cluster: Cluster, lacking: Sequence[Host], archive: str, content: str, job: str, made: Brought
) -> dict[str, str]:
    """Send the code to hosts that lack it. Return the reasons of the hosts that still lack it, by address."""
    if not lacking:
        return {}
    head = cluster.master
    of_head = job if head in lacking else ""
    results, answers = ask(reach, [head], program(_PROGRAM, "source", content, of_head, archive), limits=_MAKING)
    if why := answers[head].get("error") if head in answers else results[head].problem:
        return {h.address: f"{head}, from which it comes: {why}" if h != head else why for h in lacking}
    others = [h for h in lacking if h != head]
    sent = Transfer(src=made.archive, dst=made.archive, unpack=made.folder)
    return {o.host.address: str(o.error) for o in copy(reach, cluster, others, sent).failed} if others else {}
