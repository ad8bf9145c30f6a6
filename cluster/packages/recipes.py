"""Recipes of environments on the shared folder, so that a later attempt, also on a new master, builds the same.

Files are readable by the job's own user alone: a list of packages may name private places.
"""

import contextlib
import dataclasses
import json
import os
import stat
from pathlib import Path

from cluster.errors import ClusterError
from cluster.files import write_atomically
from cluster.packages.recipe import Recipe
from cluster.ssh.onhost import trusted_files
from cluster.typed import from_json


def recipes_folder(shared: str) -> Path:
    """Return the folder of the recipes."""
    return Path(shared) / "environments"


def keep(shared: str, name: str, recipe: Recipe) -> None:
    """Store the recipe of an environment. Raises ClusterError if that is not possible."""
    folder = recipes_folder(shared)
    try:
        folder.mkdir(exist_ok=True)
        is_own = trusted_files.folder_owner(folder) == os.getuid()
        if is_own and stat.S_IMODE(folder.lstat().st_mode) != 0o1777:
            folder.chmod(0o1777)  # every user of the cluster has files in it
        trusted_files.require_place(folder, f": as root on the master, 'chown root {folder} && chmod 1777 {folder}'")
        if os.path.lexists(_recipe(folder, name)):
            _read(_recipe(folder, name))  # raises Untrusted for another user's file
        else:
            write_atomically(_recipe(folder, name), json.dumps(dataclasses.asdict(recipe)), mode=0o600)
    except trusted_files.Untrusted as e:
        raise ClusterError(f"lists of packages: {e.filename} {e.strerror}") from e
    except OSError as e:
        raise ClusterError(f"{folder} cannot be written, where lists of packages are kept: {e.strerror or e}") from e


def kept_recipe(shared: str, name: str) -> Recipe:
    """Return this user's recipe of an environment. Raises ClusterError if it is gone, or another user's."""
    path = _recipe(recipes_folder(shared), name)
    try:
        return from_json(Recipe, json.loads(_read(path)))
    except (OSError, ValueError) as e:
        why = e.strerror if isinstance(e, OSError) else str(e)
        raise ClusterError(
            f"{path}, by which the program's packages would be installed, cannot be read: {why}; start it anew with "
            "'inv train.run --requirements'"
        ) from e


def keep_installed(shared: str, name: str, lines: str) -> None:
    """Store the versions that the first build has installed."""
    path = _installed(recipes_folder(shared), name)
    with contextlib.suppress(OSError):  # without it the next build takes the then newest versions
        if lines and not path.exists():
            write_atomically(path, lines, mode=0o600)


def kept_installed(shared: str, name: str) -> str:
    """Return those versions; "" if there was no build yet. Raises ClusterError if the file is another user's."""
    path = _installed(recipes_folder(shared), name)
    try:
        return _read(path).decode()
    except (trusted_files.Untrusted, ValueError) as e:
        why = e.strerror if isinstance(e, OSError) else "is no text"
        raise ClusterError(f"{path}, the versions of an earlier build, {why}: remove it") from e
    except OSError:
        return ""


def kept_ids(shared: str) -> list[str]:
    """Return the ids of this user's environments that have a recipe."""
    folder = recipes_folder(shared)
    with contextlib.suppress(OSError):
        found = (p for pattern in ("*.json", f"{os.getuid()}*/*.json") for p in folder.glob(pattern))
        return sorted({p.stem for p in found if p.lstat().st_uid == os.getuid()})
    return []


def forget(shared: str, name: str) -> None:
    """Remove the recipe and the versions of an environment."""
    folder = recipes_folder(shared)
    for path in (_recipe(folder, name), _installed(folder, name)):
        with contextlib.suppress(OSError):
            path.unlink()


def _read(path: Path) -> bytes:
    """Read a file that decides what pip or a container runs, so only this user's own. Raises Untrusted, OSError."""
    return trusted_files.read_file(path, owner=os.getuid())


def _recipe(folder: Path, name: str) -> Path:
    return _own(folder, f"{name}.json")


def _installed(folder: Path, name: str) -> Path:
    return _own(folder, f"{name}.txt")


def _own(folder: Path, name: str) -> Path:
    """Return the path of this user's file: below a folder of his own if somebody else has taken the name."""
    path = folder / name
    is_taken = os.path.lexists(path) and path.lstat().st_uid != os.getuid()
    return Path(trusted_files.own_folder(folder, str(os.getuid()))) / name if is_taken else path
