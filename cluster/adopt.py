"""A cluster made the project's own: its hostfile and settings written where every task looks first."""

from pathlib import Path

from cluster.errors import ConfigError, NothingToDo
from cluster.files import write_atomically
from cluster.hosts import hostfile
from cluster.inventory import ROOT, load_cluster


def hosts(source: str, *, force: bool = False, dry_run: bool = False, into: Path = ROOT) -> str:
    """Write `hosts` and `cluster.toml` of a lab (`lab:NAME`) into the project's folder; what was done, as text.

    Raises ConfigError rather than replace a different file, unless `force`; NothingToDo if both are so already.
    """
    if source != "lab" and not source.startswith("lab:"):
        raise ConfigError(f"{source!r} is not a source of hosts: give lab or lab:NAME")
    cluster = load_cluster(source)
    settings = (cluster.folder / "cluster.toml").read_text()
    wanted = {into / "hosts": hostfile(cluster.hosts), into / "cluster.toml": settings}
    if dry_run:
        return "\n".join(f"# {path}\n{text}" for path, text in wanted.items()).rstrip()
    different = [p for p, text in wanted.items() if p.exists() and p.read_text() != text]
    if different and not force:
        raise ConfigError(
            f"{' and '.join(map(str, different))} would be replaced: move away what you need of it, or add --force"
        )
    if all(p.exists() for p in wanted) and not different:
        raise NothingToDo(f"{into / 'hosts'} has these {len(cluster.hosts)} hosts already")
    for path, text in wanted.items():
        write_atomically(path, text)
    return f"{into / 'hosts'}: {len(cluster.hosts)} hosts, {sum(h.slots for h in cluster.hosts)} slots"
