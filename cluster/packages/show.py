"""Text output of environments for people."""

from cluster.hostset import fold
from cluster.jobs.client.show import duration
from cluster.packages.env_list import Environment, Stock
from cluster.terminal import counted


def table(have: Stock) -> str:
    """Format one line per environment, the last used first."""
    if not have.environments:
        return f"no environments in {have.place}"
    lines = [line(e) for e in sorted(have.environments, key=lambda e: e.idle_s)]
    return "\n".join([*lines, f"{counted(len(lines), 'environment')} in {have.place}"])


def line(e: Environment) -> str:
    """Format an environment on one line: id, content, size, hosts and jobs."""
    words = [e.id, e.what or "(not whole)", f"{e.bytes / 1e6:,.0f} MB", f"used {duration(e.idle_s)} ago"]
    words += [f"on {fold(e.hosts)}"] if e.hosts else []
    words += [f"in part on {fold(e.partly)}"] if e.partly else []
    words += [f"in use by {', '.join(e.going_on)}"] if e.going_on else []
    words += [f"of {counted(len(e.ended), 'ended job')}"] if e.ended else []
    return "  ".join(words)
