"""Reboot of hosts, with a wait until they answer again."""

import time
from collections.abc import Callable, Mapping, Sequence

from cluster.errors import ClusterError, ConfigError
from cluster.hosts import Host
from cluster.hostset import fold
from cluster.inventory import Cluster
from cluster.kill.busy import refuse_busy
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from cluster.ssh.noise_filter import marked, output_between_marks, trouble

# The kernel's boot id, and the start of the first process: containers share the first with their host.
_BOOT = marked("cat /proc/sys/kernel/random/boot_id && cut -d' ' -f22 /proc/1/stat")
_GO = (
    "sync; systemctl reboot 2>/dev/null || reboot -f 2>/dev/null || "
    "python3 -c 'import ctypes; ctypes.CDLL(None).reboot(0x01234567)'"
)
_PAUSE_S = 1.0


def refuse_while_a_job_runs(reach: Executor, cluster: Cluster, hosts: Sequence[Host]) -> None:
    """Raise ConfigError if a job may run on these hosts or one is this machine, ClusterError if one does not answer."""
    if any(h.is_local for h in hosts):
        raise ConfigError("localhost is this machine: reboot it yourself")
    unknown = refuse_busy(reach, cluster, hosts, "a reboot would end it")
    if unknown:
        lines = [f"  {h}  {why}" for h, why in unknown.items()]
        raise ClusterError(
            "\n".join([f"{fold(h.address for h in unknown)} cannot be asked whether a job runs there:", *lines])
            + "\nleave it out with --hosts; 'inv run --sudo --hosts HOST -- reboot' asks for no job"
        )


def reboot(
    reach: Executor,
    hosts: Sequence[Host],
    timeout_s: float,
    on_back: Callable[[Host, float], None] = lambda _host, _seconds: None,
) -> Mapping[Host, str]:
    """Reboot the hosts and wait.

    Return why, by host, for those that are not back in time. `on_back` hears of each return.
    """
    before = reach.run(hosts, _BOOT)
    bad = {h: f"not rebooted: {reason}" for h, r in before.items() if (reason := trouble(r))}
    going = [h for h in hosts if h not in bad]
    began = time.monotonic()
    sent = reach.run(going, f"setsid sh -c 'sleep 0.5; {_quoted(_GO)}' >/dev/null 2>&1 </dev/null &", sudo=True)
    bad |= {h: f"not rebooted: {r.problem}" for h, r in sent.items() if not r.ok}
    away = [h for h in going if h not in bad]
    why = dict.fromkeys(away, "it has not gone down")
    while away and time.monotonic() - began < timeout_s:
        time.sleep(_PAUSE_S)
        now = reach.run(away, _BOOT, limits=Limits(connect_s=3, total_s=5))
        for host, result in now.items():
            if not trouble(result) and output_between_marks(result) != output_between_marks(before[host]):
                on_back(host, time.monotonic() - began)
                away.remove(host)
            else:
                why[host] = trouble(result) or why[host]
    return bad | {h: f"not back within {timeout_s:g} s: {why[h]}" for h in away}


def _quoted(text: str) -> str:
    return text.replace("'", "'\\''")
