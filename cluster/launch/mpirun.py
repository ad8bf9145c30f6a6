"""Exact mpirun command line of a launch, built by pure functions from hosts, a trainer's command and a profile."""

import hashlib
import itertools
import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cluster.errors import ConfigError
from cluster.hosts import Host
from cluster.hostset import fold
from cluster.launch.facts import HostFacts, agreed
from cluster.launch.profiles import Profile, Setting, profile_for
from cluster.terminal import counted

SLOTS = "DLAMI_SLOTS"  # variable of ranks on a host that other jobs may share: their slots, and of how many


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Inputs that determine an mpirun command line."""

    mpirun: str  # absolute path, equal on all hosts
    profile: Profile
    interfaces: str  # value of the profile's {interfaces}: a device name, or networks
    daemons: str  # value of {daemons}
    names: str  # value of {names}: the device name, for libraries that take no networks; "" if hosts differ
    devices: Mapping[str, str]  # device name by address, if hosts differ: each host takes its own
    hosts: tuple[Host, ...]  # hosts that hold ranks
    np: int  # ranks in all
    is_root: bool  # whether ranks run as root
    yields: bool  # whether a host has at least as many ranks as cores, and no GPU
    environment: Mapping[str, str] = field(default_factory=dict)  # further variables; they override the profile's
    rendezvous: tuple[str, int] | None = None  # the first host's address, and a port that is free there


@dataclass(frozen=True, kw_only=True)
class JobTags:
    """Job's tags in the environment of its processes, which distinguish them from all others."""

    id: str
    folder: str = ""  # folder of its record and lease; "" for ranks without a record
    attempt: int = 1

    def variables(self) -> dict[str, str]:
        """Return the tags as environment variables."""
        record = {"DLAMI_JOB_FOLDER": self.folder, "DLAMI_ATTEMPT": str(self.attempt)} if self.folder else {}
        return {"DLAMI_JOB": self.id, **record}

    def session_folder(self) -> str:
        """Return a new name for Open MPI's folder on each host. No other user can have taken it before."""
        return f"{session_folders(self.id)}.{self.attempt}.{secrets.token_hex(4)}"

    def words(self) -> str:
        """Return the tags as `NAME=VALUE` words, without values unfit for the command line of mpirun's daemons."""
        return " ".join(f"{k}={v}" for k, v in self.variables().items() if re.fullmatch(r"[\w./:@+-]+", v))


def session_folders(job_id: str) -> str:
    """Return what the names of all of Open MPI's folders of a job begin with. Sockets lie in them, so it is short."""
    return f"/tmp/dlami-mpi.{hashlib.sha256(job_id.encode()).hexdigest()[:8]}"


def plan_launch(
    hosts: Sequence[Host],
    facts: Mapping[Host, HostFacts],
    *,
    np: int | None = None,
    profile: str | None = None,
    environment: Mapping[str, str] | None = None,
    master: Host | None = None,
) -> Launch:
    """Return the launch that fits these hosts. Raises ConfigError or ClusterError before anything is started.

    np: ranks, one per slot by default; they fill the hosts in rank order. master: where mpirun is started, if that
    is among the facts and may hold no rank.
    """
    used = hosts_for(hosts, np)
    known = {h: facts[h] for h in used}
    with_mpi = known | ({master: facts[master]} if master else {})
    without = [h.address for h, f in with_mpi.items() if not f.mpirun]
    if without:
        raise ConfigError(f"no mpirun on {fold(without)}: install Open MPI there (package openmpi-bin)")
    mpirun = agreed(with_mpi, "the path of mpirun", lambda f: f.mpirun)
    agreed(with_mpi, "Open MPI's version", lambda f: f.mpirun_version)
    gpus = min((known[h].gpus or 0) for h in used)
    total, interfaces = np or sum(h.slots for h in used), _interfaces(known)
    return Launch(
        mpirun=mpirun,
        hosts=used,
        np=total,
        is_root=agreed(known, "being root", lambda f: f.is_root),
        profile=profile_for(gpus, all(known[h].has_efa for h in used), profile),
        interfaces=interfaces,
        daemons=_interfaces(with_mpi),
        names="" if (devices := _devices(known)) else interfaces,
        devices=devices,
        yields=not gpus and any(ranks >= known[h].cores for h, ranks in ranks_on(used, total).items()),
        environment=dict(environment or {}),
        rendezvous=_rendezvous(used, known),
    )


def hosts_for(hosts: Sequence[Host], np: int | None) -> tuple[Host, ...]:
    """Return the hosts that hold a rank if `np` ranks fill the slots in order.

    Raises ConfigError if they do not fit.
    """
    slots = sum(h.slots for h in hosts)
    if slots == 0:
        raise ConfigError("no host has a slot: a master with slots=0 does not train, and there are no workers")
    if np is not None and not 1 <= np <= slots:
        raise ConfigError(
            f"{counted(np, 'rank')} asked for, there are {counted(slots, 'slot')} on {counted(len(hosts), 'host')}: "
            f"give --np {f'1 to {slots}' if slots > 1 else slots}, or more hosts"
        )
    return tuple(ranks_on(hosts, np or slots))


def ranks_on(hosts: Sequence[Host], np: int) -> dict[Host, int]:
    """Return the number of ranks per host. Hosts without ranks are left out: mpirun does not get them."""
    counts: dict[Host, int] = {}
    left = np
    for host in sorted(hosts):
        if left > 0 and host.slots > 0:
            counts[host] = min(host.slots, left)
            left -= counts[host]
    return counts


def command_line(
    launch: Launch,
    command: Sequence[str],
    *,
    hostfile: str,
    workdir: str,
    output: str | None = None,
    job: JobTags | None = None,
    told: Mapping[str, str | None] | None = None,
) -> list[str]:
    """Return the words of the mpirun command.

    hostfile, workdir: paths equal on all hosts. output: a folder for a file per rank. job: tags in the environment of
    all processes of the launch. told: further variables of the ranks; None passes on the value that mpirun itself has.
    """
    words = [launch.mpirun, "-np", str(launch.np), "--hostfile", hostfile, "--wdir", workdir]
    if launch.is_root:
        words.append("--allow-run-as-root")
    words += ["--tag-output"]
    if output:
        words += ["--output-filename", output]
    settings = [*launch.profile.settings, *_crowded(launch)]
    for s in settings:
        if s.kind == "flag":
            words += [s.name, s.value] if s.value else [s.name]
        elif s.kind == "mca":
            words += ["--mca", s.name, _filled(s, launch)]
    if job:
        words += ["--mca", "orte_launch_agent", f"env {job.words()} orted"]
        words += ["--mca", "orte_tmpdir_base", job.session_folder()]
    of_device = [s.name for s in settings if launch.devices and "{names}" in s.value]
    filled = {s.name: _filled(s, launch) for s in settings if s.kind == "env" and s.name not in of_device}
    exported: dict[str, str | None] = {**filled}
    if launch.rendezvous:
        exported |= {"MASTER_ADDR": launch.rendezvous[0], "MASTER_PORT": str(launch.rendezvous[1])}
    exported |= {**(told or {}), **launch.environment, **(job.variables() if job else {})}
    own = [name for name in of_device if name not in exported]
    for name, value in exported.items():
        words += ["-x", name if value is None else f"{name}={value}"]
    return [*words, *(_with_own_device(own, launch.devices) if own else ()), *command]


def with_variables(words: Sequence[str], told: Mapping[str, object]) -> list[str]:
    """Return the command with other values of variables that it exports to the ranks."""
    found, command = list(words), list(words)
    for name, value in told.items():
        pairs = itertools.pairwise(found)
        at = next((n for n, (flag, pair) in enumerate(pairs, 1) if flag == "-x" and pair.startswith(f"{name}=")), None)
        if at is not None:  # ours come before the ranks' own command
            command[at] = f"{name}={value}"
    return command


def _filled(setting: Setting, launch: Launch) -> str:
    return setting.value.format(interfaces=launch.interfaces, daemons=launch.daemons, names=launch.names)


def shown(words: Sequence[str]) -> str:
    """Format the command for pasting into a shell, one flag per line."""
    text = shlex.quote(words[0])
    takes = {
        "--mca": 2,
        "-x": 1,
        "-np": 1,
        "--hostfile": 1,
        "--wdir": 1,
        "--map-by": 1,
        "--bind-to": 1,
        "--output-filename": 1,
        "--allow-run-as-root": 0,
        "--tag-output": 0,
    }
    i = 1
    while i < len(words) and words[i] in takes:
        n = takes[words[i]]
        text += " \\\n  " + shlex.join(words[i : i + n + 1])
        i += n + 1
    return text + " \\\n  " + shlex.join(words[i:])


def _crowded(launch: Launch) -> list[Setting]:
    if not launch.yields:
        return []
    return [
        Setting(
            "mca",
            "mpi_yield_when_idle",
            "1",
            "Horovod's waiting MPI thread would take the core of a rank that computes: 1.5 times slower",
        )
    ]


def _rendezvous(hosts: Sequence[Host], facts: Mapping[Host, HostFacts]) -> tuple[str, int] | None:
    """Return the first host's address as the others reach it, and a free port there; None if no free port is known."""
    first = min(hosts)
    if not facts[first].free_port:
        return None
    if first.is_local:
        return ("127.0.0.1" if len(hosts) == 1 else facts[first].own_address), facts[first].free_port
    return first.address, facts[first].free_port


def _interfaces(facts: Mapping[Host, HostFacts]) -> str:
    """Return the device name if it is the same on all hosts, else their networks; "lo" if only this machine is used.

    Raises ConfigError if a host has no device with the hostfile's address.
    """
    if all(h.is_local for h in facts):
        return "lo"
    remote = {h: f for h, f in facts.items() if not h.is_local}
    lost = [h.address for h, f in remote.items() if not f.interface]
    if lost:
        raise ConfigError(
            f"no network device with the hostfile's address on {fold(lost)}: "
            "use the private addresses that the hosts themselves have ('inv run -- ip addr')"
        )
    names = {f.interface for f in remote.values()}
    if len(names) == 1:
        return str(names.pop())
    return ",".join(sorted({str(f.network) for f in remote.values()}))


def _devices(facts: Mapping[Host, HostFacts]) -> dict[str, str]:
    """Return the device name by address if hosts differ in it, else {}.

    A list of all names would not do: a host may have another's name on a network that the others do not reach.
    """
    found = {f.own_address or h.address: str(f.interface) for h, f in facts.items() if not h.is_local}
    return found if len(set(found.values())) > 1 else {}


def _with_own_device(variables: Sequence[str], devices: Mapping[str, str]) -> list[str]:
    """Return words before a rank's command that set these variables to the device that its host has for its address.

    Source: NCCL's "Environment Variables", NCCL_SOCKET_IFNAME: a leading = asks for the whole name.
    """
    cases = "".join(f'*" {address}/"*) own={device};; ' for address, device in devices.items())
    exports = " ".join(f'{name}="=$own"' for name in variables)
    script = f'own=; case "$(ip -o addr)" in {cases}esac; [ -z "$own" ] || export {exports}; exec "$@"'
    return ["sh", "-c", script, "own-device"]
