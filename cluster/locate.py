"""Lookup of the folder of the cluster that a command means, and the errors if it is not found."""

import os
from pathlib import Path

from cluster.errors import ConfigError
from cluster.files import IS_CHECKOUT

ROOT = Path(__file__).resolve().parent.parent
LABS = Path("/var/lib/dlami-cluster/lab")


def cluster_folder(where: str | None = None) -> Path:
    """Return the folder that a name means: a folder's path, `lab` or `lab:NAME`.

    The default is the environment variable CLUSTER, so that one `export` serves a whole session. Without it, the
    nearest folder with a cluster file is used, from the current one upwards. In a checkout without any, it is the
    checkout itself.
    """
    where = where or os.environ.get("CLUSTER")
    if not where:
        return folder_upwards(Path.cwd()) or (ROOT if IS_CHECKOUT else Path.cwd())
    if lab := lab_of(where):
        return LABS / lab
    return Path(where).expanduser().resolve()


def existing_folder(where: str | None = None) -> Path:
    """Return the folder that a name means. Raises ConfigError if the name or CLUSTER means a missing lab or folder."""
    folder, named = cluster_folder(where), where or os.environ.get("CLUSTER")
    if named and not _is_folder(folder):
        raise ConfigError(_missing(named, folder, named if where else f"CLUSTER={named}"))
    return folder


def lab_of(where: str) -> str:
    """Return the lab that a cluster's name means, "" for a folder. `lab` alone is the lab named lab."""
    if where == "lab" or where.startswith("lab:"):
        return where.partition(":")[2] or "lab"
    return ""


def chosen_lab(name: str = "") -> str:
    """Return the lab that a lab task means: the given name, else CLUSTER's lab, else `lab`.

    Raises ConfigError if CLUSTER names a cluster that is no lab.
    """
    where = os.environ.get("CLUSTER", "")
    if name or not where:
        return name or "lab"
    folder = cluster_folder(where)
    if folder.parent == LABS:
        return folder.name
    raise ConfigError(f"CLUSTER={where} is no lab: give --name, or 'unset CLUSTER' for the lab named lab{_up()}")


def folder_upwards(start: Path) -> Path | None:
    """Return the nearest folder, from this one upwards, that holds a cluster file or a hostfile."""
    for folder in (start, *start.parents):
        is_a_machines_own = folder == Path("/etc")  # /etc/hosts is no hostfile
        if (folder / "cluster.toml").is_file() or ((folder / "hosts").is_file() and not is_a_machines_own):
            return folder
    return None


def cluster_file(name: str) -> Path:
    """Return the path of a cluster file by its name, as it is if no folder has such a file.

    The search covers CLUSTER's folder, then the current folder and those above it. Raises ConfigError if CLUSTER names
    a missing folder: another cluster's file would be used instead.
    """
    path, where = Path(name), os.environ.get("CLUSTER", "")
    if len(path.parts) != 1:
        return path
    named = existing_folder(where) / name if where else path
    folders = (Path.cwd(), *Path.cwd().parents)
    return next((p for p in (named, *(folder / name for folder in folders)) if p.is_file()), path)


def lab_names() -> list[str]:
    """Return the labs that have a folder, whether they are complete or not."""
    try:
        return sorted(p.name for p in LABS.iterdir() if p.is_dir())
    except OSError:
        return []


def no_lab(name: str) -> str:
    """Return the error for a lab that does not exist: it names the existing ones, or how to make it."""
    up = _up()
    return f"there is no lab {name}{up}" if up else f"there is no lab {name}: 'inv lab.up --name {name}' makes one"


def no_hostfile(folder: Path, where: str | None = None) -> str:
    """Return the error for a cluster's folder without a hostfile."""
    named = where or os.environ.get("CLUSTER")
    up = "" if named else _up()
    if not (named or IS_CHECKOUT or folder_upwards(folder)):
        return (
            f"there is no cluster in {folder} or above it{up}. Go to the folder of its cluster.toml or name it: "
            "CLUSTER=/a/folder, CLUSTER=lab:NAME. A new one: 'inv stack.init' or 'inv lab.up'"
        )
    if named and lab_of(named):
        return f"lab {lab_of(named)} was not made to its end: 'inv lab.up --name {lab_of(named)}' makes it anew"
    return (
        f"there is no hostfile {folder / 'hosts'}: 'inv hosts.write' makes it from a stack or a lab, "
        f"or copy hosts.example and edit it{up}"
    )


def _is_folder(folder: Path) -> bool:
    try:
        return folder.is_dir()
    except OSError:
        return False


def _missing(named: str, folder: Path, shown: str) -> str:
    if lab := lab_of(named):
        return no_lab(lab)
    if folder.is_file():
        return f"{shown} is a file, and a cluster is the folder of its files: 'export CLUSTER={folder.parent}'"
    if named in lab_names():
        return f"{shown}: there is no folder {folder}; for the lab of that name: 'export CLUSTER=lab:{named}'"
    return f"{shown}: there is no folder {folder}{_up()}"


def _up() -> str:
    """Return the end of a sentence with this machine's labs, "" if there are none."""
    found = lab_names()
    if not found:
        return ""
    return f"; up: {', '.join(found)} ('export CLUSTER=lab:{found[0] if len(found) == 1 else 'NAME'}')"
