"""What a rung asks of each host, in chains: in one chain the next question waits for the one before."""

from collections.abc import Sequence
from typing import Any

from cluster.health import xid
from cluster.health.check import Ask
from cluster.health.counted import COUNT
from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.jobs.state import OVER
from cluster.ssh.options import options_on_hosts

GPU_S = 5.0  # nvidia-smi answers in 1 to 3 s on eight GPUs with persistence mode on
PLACE_S = 6.0  # a disk or a server busy with checkpoints may take seconds; one that hangs takes for ever
SCRATCH = "/opt/dlami/nvme"
SSH_OPTIONS = tuple(options_on_hosts())
BASICS = (
    "/proc/meminfo",
    "/proc/pressure/memory",
    "/proc/loadavg",
    "/proc/uptime",
    "/proc/sys/kernel/osrelease",
    "/proc/sys/kernel/random/boot_id",
    "/proc/self/mounts",
    "/etc/fstab",
    "/sys/devices/system/cpu/online",
    "/sys/class/dmi/id/product_name",
)

_SYSTEMCTL = "systemctl show -p LoadState,ActiveState,SubState nvidia-fabricmanager"
_TIME = (  # 127: neither is there
    "command -v chronyc >/dev/null || command -v ntpq >/dev/null || exit 127; "
    f"{{ if command -v chronyc >/dev/null; then chronyc -n tracking; else ntpq -pn; fi; }} 2>&1 | {COUNT}"
)


def quick(cluster: Cluster, host: Host) -> list[list[Ask]]:
    """The quick rung's questions to one host. Nothing in it takes more than a moment of processor time."""
    others = [h.address for h in cluster.hosts if h != host and not h.is_local]
    chains = [*_of_its_gpus(), *_of_its_system(cluster), [_readings(cluster, others)]]
    if host == cluster.master:
        ssh_s = 20.0 + 0.5 * len(others)  # for all of them; one that hangs is left sooner
        chains += [
            [Ask(name="jobs", limit_s=3, sense="jobs", arguments=(cluster.shared, sorted(OVER)))],
            [Ask(name="history", limit_s=3, sense="history", arguments=(cluster.shared, 20))],
            [Ask(name="ssh", limit_s=ssh_s + 1, sense="ssh", arguments=(others, SSH_OPTIONS, ssh_s))],
        ]
    else:
        after = [h.address for h in after_it(cluster.hosts, host) if h != cluster.master][:1]
        next(c for c in chains if c[0].name == "processes").append(
            Ask(name="next-ssh", limit_s=31, sense="ssh", arguments=(after, SSH_OPTIONS, 30.0))
        )
    return chains


def _of_its_gpus() -> list[list[Ask]]:
    """The driver, if the kernel log does not say that it would hang; what joins GPUs and hosts; who sets the clock."""
    return [
        [
            Ask(name="kernel-log", limit_s=8, command=xid.COMMAND),
            Ask(
                name="smi",
                limit_s=GPU_S,
                command="nvidia-smi -q -x",
                tool="nvidia-smi",
                unless=("kernel-log", *xid.HANGS[:2]),
            ),
            Ask(name="nvlink", limit_s=GPU_S, command="nvidia-smi nvlink -s", tool="nvidia-smi"),
            Ask(name="nvlink-errors", limit_s=GPU_S, command="nvidia-smi nvlink -e", tool="nvidia-smi"),
            Ask(name="gpu-processes", limit_s=GPU_S, sense="gpu_processes", tool="nvidia-smi"),
        ],
        [
            Ask(name="efa", limit_s=8, command=f"fi_info -p efa 2>&1 | {COUNT}", tool="fi_info"),
            Ask(name="fabric-manager", limit_s=8, command=_SYSTEMCTL, tool="nvidia-smi"),
            Ask(name="time", limit_s=8, command=_TIME),
        ],
    ]


def _of_its_system(cluster: Cluster) -> list[list[Ask]]:
    """Addresses, folders, versions, processes, and what EC2 says."""
    return [
        [Ask(name="addresses", limit_s=8, command="ip -j addr", tool="ip")],
        [Ask(name="mpirun", limit_s=8, command="mpirun --version", tool="mpirun")],
        [
            Ask(name=f"place:{p}", limit_s=PLACE_S, sense="place", arguments=(p,), disk_of=p)
            for p in ("/", "/tmp", "/dev/shm", SCRATCH)
        ],
        [Ask(name=f"place:{cluster.shared}", limit_s=PLACE_S, sense="place", arguments=(cluster.shared,))],
        [
            Ask(
                name="project-folder",
                limit_s=8,
                parts=tuple(
                    Ask(name=name, limit_s=8, sense=name, arguments=(cluster.project,))
                    for name in ("versions", "project")
                ),
            )
        ],
        [Ask(name="processes", limit_s=8, sense="processes", arguments=(1.0,))],
        [Ask(name="instance", limit_s=8, sense="instance")],
    ]


def _readings(cluster: Cluster, others: list[str]) -> Ask:
    """What is read from the kernel's tables and a few small files, and who answers."""
    addresses = [h.address for h in cluster.hosts]
    parts: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
        ("basics", "files", (BASICS,)),
        ("efa-ports", "files", (["/sys/class/infiniband/*/ports/1/state"],)),
        ("devices", "devices", ()),
        ("trust", "trust", (addresses,)),
        ("links", "paths", (others,)),
    )
    asks = (Ask(name=name, limit_s=8, sense=sense, arguments=arguments) for name, sense, arguments in parts)
    return Ask(name="readings", limit_s=10, parts=tuple(asks))


def after_it(hosts: Sequence[Host], host: Host) -> list[Host]:
    """The other hosts in rank order, beginning after this one: so that not all go to the same one at the same time."""
    turned = sorted(h for h in hosts if h != host and not h.is_local)
    return [h for h in turned if h > host] + [h for h in turned if h < host]
