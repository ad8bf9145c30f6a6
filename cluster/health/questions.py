"""Questions to each host, and how they are sent and their answers read.

Questions go to a host in chains. Within a chain each question waits for the one before, and chains run in parallel.
"""

import json
import os
import statistics
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from cluster.health import xid
from cluster.health.check import Answer
from cluster.health.gpu import SLOW_S
from cluster.health.line_count import COUNT_LINES
from cluster.health.onhost.owner import RECORDS_S
from cluster.health.onhost.peers import REACH_S, loses_large_frames
from cluster.health.verdict import Problem, Severity
from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.jobs.state import OVER
from cluster.recovery.host_failures import FILES, FOLDER
from cluster.ssh.failure import Reason
from cluster.ssh.fanout import Executor
from cluster.ssh.launcher import launcher
from cluster.ssh.limits import Limits
from cluster.ssh.options import options_on_hosts
from cluster.ssh.program import ask, program
from cluster.ssh.result import Result

GPU_S = 5.0  # limit for nvidia-smi's other commands, besides its report
SMI_S = 35.0  # without persistence mode nvidia-smi takes up to 30 s on eight GPUs without hanging
LINK_TIMES = 4  # connections to each other host: a loss of one packet in ten shows in most checks
PLACE_S = 6.0  # a disk or server that is busy with checkpoints may take seconds
SCRATCH = "/opt/dlami/nvme"
BASICS = (
    "/proc/meminfo",
    "/proc/pressure/memory",
    "/proc/loadavg",
    "/proc/uptime",
    "/proc/sys/kernel/osrelease",
    "/proc/sys/kernel/random/boot_id",
    "/proc/self/mounts",
    "/proc/self/limits",
    "/etc/fstab",
    "/sys/devices/system/cpu/online",
    "/sys/class/dmi/id/product_name",
)

_SYSTEMCTL = "systemctl show -p LoadState,ActiveState,SubState nvidia-fabricmanager"
_TIME = (  # 127: neither is installed
    "command -v chronyc >/dev/null || command -v ntpq >/dev/null || exit 127; "
    f"{{ if command -v chronyc >/dev/null; then chronyc -n tracking; else ntpq -pn; fi; }} 2>&1 | {COUNT_LINES}"
)
Answers = dict[str, Answer]
_AT_ONCE = 16  # silent hosts whose path is tested in parallel
PATIENCE = 4  # factor of the connect limit when silent hosts are asked again
MAY_BE_BUSY = {Reason.NO_SSH_IN_TIME, Reason.TURNED_AWAY, Reason.TIME_LIMIT}  # the host may be busy, or dead
SILENT = {*MAY_BE_BUSY, Reason.NO_ROUTE, Reason.REFUSED, Reason.SILENCE, Reason.BROKE_OFF, Reason.SIGNAL}
BUSY_HERE = 3.0  # load per core above which this machine itself may be the slow one
_PROBE = "cluster.health.onhost.probe"
# A pod's user has no access to these of its node, by design: kernel log, services, EC2's metadata.
_OF_THE_NODE = {"kernel-log", "fabric-manager", "time", "instance", "place:/"}  # a pod's own root is read-only


@dataclass(frozen=True, kw_only=True)
class Question:
    """Question to a host: a shell command, a reading with its arguments, or several readings.

    Several readings (`parts`) share a child process but have separate answers. This is cheaper, and suits readings that
    hardly ever hang.
    """

    name: str
    limit_s: float
    command: str = ""
    reading: str = ""
    arguments: tuple[Any, ...] = ()
    tool: str = ""  # must be on PATH, or the answer is `missing`
    unless: tuple[str, ...] = field(default=())  # an earlier question, and texts in its answer that forbid this one
    unless_slow: tuple[str, float] | tuple[()] = ()  # an earlier question, and the seconds above which this is skipped
    parts: tuple["Question", ...] = ()
    disk_of: str = ""  # a local folder: while its disk works, the question gets more time

    def record(self) -> dict[str, Any]:
        """Return the question as JSON for the probe."""
        said: dict[str, Any] = {"name": self.name, "limit_s": self.limit_s, "tool": self.tool, "unless": self.unless}
        if self.disk_of:
            said["disk_of"] = self.disk_of
        if self.unless_slow:
            said["unless_slow"] = self.unless_slow
        if self.command:
            return {**said, "command": self.command}
        if self.parts:
            return {**said, "parts": [part.record() for part in self.parts]}
        return {**said, "reading": self.reading, "arguments": self.arguments}


def quick_questions(cluster: Cluster, host: Host) -> list[list[Question]]:
    """Return the quick level's questions to one host. None of them takes much processor time.

    A pod gets only those that can be answered from inside it.
    """
    others = [h.address for h in cluster.hosts if h != host and not h.is_local]
    chains = [*gpu_questions(), *_of_its_system(cluster, host), [_readings(cluster, others)]]
    if host == cluster.master:
        ssh_s = 20.0 + 0.5 * len(others)  # for all hosts together; a host that hangs is given up sooner
        chains += [
            [Question(name="jobs", limit_s=3, reading="jobs", arguments=(cluster.shared, sorted(OVER)))],
            [Question(name="history", limit_s=3, reading="history", arguments=(cluster.shared, 20, cluster.project))],
            [failures_question(cluster.shared, cluster.project)],
            [Question(name="ssh", limit_s=ssh_s + 1, reading="ssh", arguments=(others, options_on_hosts(), ssh_s))],
        ]
    else:
        after = [h.address for h in after_it(cluster.hosts, host) if h != cluster.master][:1]
        next(c for c in chains if c[0].name == "processes").append(
            Question(name="next-ssh", limit_s=31, reading="ssh", arguments=(after, options_on_hosts(), 30.0))
        )
    return chains if launcher().has_machines else _seen_from_inside(chains)


def _seen_from_inside(chains: list[list[Question]]) -> list[list[Question]]:
    """Return the chains without the questions that only a node can answer."""
    kept = [[question for question in chain if question.name not in _OF_THE_NODE] for chain in chains]
    return [chain for chain in kept if chain]


def failures_question(shared: str, project: str) -> Question:
    """Return the question to the master for the record of failed hosts on the shared folder."""
    files = [f"{shared}/{FOLDER}/{FILES}"]
    return Question(name="failures", limit_s=3, reading="trusted", arguments=(files, project))


def gpu_questions() -> list[list[Question]]:
    """Return a chain for the kernel log, NVIDIA driver and NVLink, and one for EFA, fabric manager and time service.

    The driver's tools are not run if the kernel log shows that they would hang.
    """
    return [
        [
            Question(name="kernel-log", limit_s=8, command=xid.COMMAND),
            Question(
                name="smi",
                limit_s=SMI_S,
                command="nvidia-smi -q -x",
                tool="nvidia-smi",
                unless=("kernel-log", *xid.HANGS[:2]),
            ),
            _unless_slow(name="nvlink", command="nvidia-smi nvlink -s"),
            _unless_slow(name="nvlink-errors", command="nvidia-smi nvlink -e"),
            _unless_slow(name="gpu-processes", limit_s=GPU_S + RECORDS_S, reading="gpu_processes"),
        ],
        [
            Question(name="efa", limit_s=8, command=f"fi_info -p efa 2>&1 | {COUNT_LINES}", tool="fi_info"),
            Question(name="fabric-manager", limit_s=8, command=_SYSTEMCTL, tool="nvidia-smi"),
            Question(name="time", limit_s=8, command=_TIME),
        ],
    ]


def _unless_slow(*, limit_s: float = GPU_S, **more: Any) -> Question:
    """Return a question to nvidia-smi that is skipped if nvidia-smi is slow: it would take as long again."""
    return Question(limit_s=limit_s, tool="nvidia-smi", unless_slow=("smi", SLOW_S), **more)


def _of_its_system(cluster: Cluster, host: Host) -> list[list[Question]]:
    """Return the questions about addresses, Open MPI, folders, the project, processes, and the EC2 instance."""
    shared = [cluster.shared] if cluster.is_shared or host == cluster.master else []
    return [
        [Question(name="addresses", limit_s=8, command="ip -j addr", tool="ip")],
        [Question(name="mpirun", limit_s=8, command="mpirun --version", tool="mpirun")],
        [
            Question(name=f"place:{p}", limit_s=PLACE_S, reading="place", arguments=(p,), disk_of=p)
            for p in ("/", "/tmp", "/dev/shm", SCRATCH)
        ],
        *([Question(name=f"place:{p}", limit_s=PLACE_S, reading="place", arguments=(p, True))] for p in shared),
        [
            Question(
                name="project-folder",
                limit_s=8,
                parts=tuple(
                    Question(name=name, limit_s=8, reading=name, arguments=(cluster.project,))
                    for name in ("versions", "project")
                ),
            )
        ],
        [Question(name="processes", limit_s=8, reading="processes", arguments=(1.0,))],
        [Question(name="instance", limit_s=8, reading="instance")],
    ]


def _readings(cluster: Cluster, others: list[str]) -> Question:
    """Return the question for small files, the PCI bus, known hosts, and TCP to the other hosts."""
    addresses = [h.address for h in cluster.hosts]
    parts: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
        ("basics", "files", (BASICS,)),
        ("efa-ports", "files", (["/sys/class/infiniband/*/ports/1/state"],)),
        ("devices", "devices", ()),
        ("trust", "trust", (addresses,)),
        ("links", "links", (others, REACH_S, LINK_TIMES)),
    )
    readings = (
        Question(name=name, limit_s=8, reading=reading, arguments=arguments) for name, reading, arguments in parts
    )
    return Question(name="readings", limit_s=10, parts=tuple(readings))


def after_it(hosts: Sequence[Host], host: Host) -> list[Host]:
    """Return the other hosts in rank order, from the one after this host, so that not all try the same host first."""
    turned = sorted(h for h in hosts if h != host and not h.is_local)
    return [h for h in turned if h > host] + [h for h in turned if h < host]


def put_questions(
    reach: Executor, hosts: Sequence[Host], chains: Callable[[Host], Sequence[Sequence[Question]]], *, limits: Limits
) -> tuple[dict[Host, Answers], dict[Host, Problem]]:
    """Return each host's answers by question name, and a problem for each host that gave none.

    Hosts that were silent are asked once more if the others were slow or this machine is busy.
    """
    probe = program(_PROBE)

    def put_to(some: Sequence[Host], limits: Limits) -> tuple[dict[Host, Result], dict[Host, Any]]:
        results, said = ask(reach, some, probe, lambda host: [records(chains(host))], limits=limits)
        return dict(results), said

    results, said = put_to(hosts, limits)
    late = [h for h, r in results.items() if r.failure and r.failure.reason in MAY_BE_BUSY]
    here = os.getloadavg()[0] / (os.cpu_count() or 1)
    if late and may_be_busy([results[h].seconds for h in said], here, limits.connect_s):
        more_results, more_said = put_to(late, replace(limits, connect_s=PATIENCE * limits.connect_s))
        results, said = results | more_results, said | more_said
    silent = _with_mtu({h: silence_problem(r) for h, r in results.items() if h not in said}, results)
    answers = {h: {**dict.fromkeys(_names(chains(h)), _LOST), **read_answers(raw)} for h, raw in said.items()}
    return answers, silent


def _with_mtu(silent: dict[Host, Problem], results: Mapping[Host, Result]) -> dict[Host, Problem]:
    """Blame the path's MTU for hosts that answer small packets but not SSH.

    SSH's greeting is the first large packet.
    """
    mute = [h for h in silent if (f := results[h].failure) and f.reason is Reason.NO_SSH_IN_TIME and not f.gateway]
    if not mute:
        return silent
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        lost = dict(zip(mute, pool.map(lambda h: loses_large_frames(h.address), mute), strict=True))
    hole = Problem(
        check="answers",
        what="small packets get to it from here and full-size ones do not, so that SSH hangs",
        means="no training can start there",
        verdict=Severity.UNKNOWN,
        do="compare the MTU of its card with that of the way to it",
        command="ip link; tracepath {addresses}",
    )
    return {**silent, **dict.fromkeys((h for h in mute if lost[h]), hole)}


def may_be_busy(answered_s: Sequence[float], load_here: float, connect_s: float) -> bool:
    """Return True if silent hosts may only be busy: the others were slow, too, or this machine is overloaded.

    Args:
        answered_s: response times of the hosts that answered.
        load_here: this machine's load per core.
    """
    return load_here > BUSY_HERE or (bool(answered_s) and statistics.median(answered_s) > connect_s)


def records(chains: Sequence[Sequence[Question]]) -> list[list[dict[str, Any]]]:
    """Return the questions as JSON for the probe."""
    return [[question.record() for question in chain] for chain in chains]


_LOST = Answer(status="damaged", err="it is not among the host's answers")


def _names(chains: Sequence[Sequence[Question]]) -> list[str]:
    return [part.name for chain in chains for ask in chain for part in ask.parts or (ask,)]


def value(answer: Answer | None, default: Any) -> Any:
    """Return an answer's JSON value, or the default if there is no answer."""
    try:
        return json.loads(answer.out) if answer is not None and answer.status == "ok" else default
    except ValueError:
        return default


def texts(answers: Mapping[Host, Answers], name: str) -> dict[Host, str]:
    """Return the text of the answer to one question, for each host that answered it."""
    return {h: a[name].out for h, a in answers.items() if name in a and a[name].status == "ok"}


def silence_problem(result: Result) -> Problem:
    """Return the problem of a host that gave no answers. Only a silent host is advised to be replaced."""
    reason = result.failure.reason if result.failure else Reason.NO_ANSWER
    if reason is Reason.NO_ANSWER:
        what = f"SSH works, but our program gave no answer: {result.problem}"
        do, command = "see what its shell and its Python say", "inv run --hosts {ranks} -- python3 --version"
    elif reason is Reason.NOT_BEGUN:
        what = f"SSH works, but {result.problem}"
        do, command = "mend the start-up files of its shell; the host may be well", "inv health --hosts {ranks}"
    elif reason in SILENT:
        what = f"it does not answer: {result.problem}"
        do, command = "try again; a host that stays silent is ended and replaced", "inv run --hosts {ranks} -- true"
    else:
        what = f"we do not get in: {result.problem}"
        do, command = "mend that here; the host may be well", "inv run --hosts {ranks} -- true"
    return Problem(
        check="answers",
        what=what[:160],
        means="no training can start there",
        verdict=Severity.UNKNOWN,
        do=do,
        command=command,
    )


def read_answers(raw: Mapping[str, Mapping[str, Any]]) -> dict[str, Answer]:
    """Return the probe's JSON as answers. An answer is damaged if its length or checksum does not match."""
    return {name: _read_answer(dict(fields)) for name, fields in raw.items()}


def _read_answer(fields: dict[str, Any]) -> Answer:
    size, crc = fields.pop("size", None), fields.pop("crc", None)
    answer = Answer(**fields)
    said = answer.out.encode()
    if answer.status == "ok" and (size, crc) != (len(said), zlib.crc32(said)):
        return Answer(status="damaged", err=f"{len(said)} bytes of it came, not the {size} that it had")
    return answer
