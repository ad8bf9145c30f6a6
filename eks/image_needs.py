"""Requirements of an image build on this machine and on the user who runs it, checked before the build starts."""

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from cluster.errors import ConfigError

IDS = 65536  # numbers of users that a Debian has, and as many of groups
ROOM = 15e9  # bytes that a build takes meanwhile, with PyTorch
_PACKAGES = {"newuidmap": "uidmap"}  # where a tool's package has another name
_TABLES = (Path("/etc/subuid"), Path("/etc/subgid"))
_ASK = ["buildah", "unshare", "sh", "-c", "cat /proc/self/uid_map; echo; cat /proc/self/gid_map"]
_ASK_S = 60.0
_SYSTEM = Path("/proc/sys")
_SWITCHES = {  # of a kernel, each with the value that closes its namespaces to users, and one that opens them
    "user.max_user_namespaces": ("0", "15000"),
    "kernel.unprivileged_userns_clone": ("0", "1"),
    "kernel.apparmor_restrict_unprivileged_userns": ("1", "0"),
}


def check(base: str, root: str) -> None:
    """Check that an image can be built here. Raises ConfigError that names what is missing and the remedy."""
    _check_tools(["buildah", "git", *([] if base else ["mmdebstrap"])])
    _check_room(Path(os.environ.get("WORK") or "/var/tmp"))
    if os.geteuid():
        if root:
            raise ConfigError(
                f"--root {root}: files keep their owners only where root unpacks them, and this is not root"
            )
        _check_tools(["newuidmap"])
        _check_namespace(_user())


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # as in a container that was given a number alone
        return str(os.geteuid())


def _check_tools(needed: list[str]) -> None:
    if missing := [tool for tool in needed if not shutil.which(tool)]:
        packages = [_PACKAGES.get(tool, tool) for tool in missing]
        raise ConfigError(f"{' and '.join(missing)} missing here: apt-get install {' '.join(packages)}")


def _check_room(folder: Path) -> None:
    try:
        free = shutil.disk_usage(folder).free
    except OSError as e:
        raise ConfigError(f"there is no folder to build in: {folder}, {e.strerror} (WORK names another)") from None
    if free < ROOM:
        raise ConfigError(
            f"{folder} has {free / 1e9:.0f} GB free, it takes {ROOM / 1e9:.0f} meanwhile: WORK names another folder"
        )


def _check_namespace(user: str) -> None:
    """Check that this user can be root in a user namespace with enough subordinate ids. Raises ConfigError.

    Files of the image's other users are owned by those ids.
    """
    try:
        said = subprocess.run(_ASK, capture_output=True, text=True, check=False, timeout=_ASK_S)
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"'buildah unshare' did not answer {user} within {_ASK_S:g} s: root builds without it"
        ) from None
    if said.returncode:
        raise ConfigError(f"{user} cannot build an image here, root can: {_why_closed(said.stderr)}")
    maps = said.stdout.split("\n\n")
    if len(maps) != 2 or min(map(_count, maps)) < IDS:
        first = max(100_000, *(_end(table) for table in _TABLES))
        raise ConfigError(
            f"{user} has too few numbers for the users and groups of an image, root has them: "
            f"echo {user}:{first}:{IDS} | sudo tee -a {' '.join(map(str, _TABLES))}"
        )


def _why_closed(stderr: str) -> str:
    for switch, (closed, opened) in _SWITCHES.items():
        path = Path(_SYSTEM, *switch.split("."))
        if path.exists() and path.read_text().strip() == closed:
            return f"user namespaces are closed, sudo sysctl -w {switch}={opened} opens them"
    return next(iter(stderr.strip().splitlines()), "'buildah unshare' fails and does not say why")


def _count(table: str) -> int:
    """Return how many ids a map of the kernel has, from its rows of inside, outside and count."""
    return sum(int(row.split()[2]) for row in table.splitlines() if row.strip())


def _end(table: Path) -> int:
    """Return the first id after all that /etc/subuid or /etc/subgid has assigned; 0 if the file cannot be read."""
    try:
        rows: Iterable[list[str]] = [line.split(":") for line in table.read_text().splitlines()]
        return max((int(row[1]) + int(row[2]) for row in rows if len(row) == 3), default=0)
    except (OSError, ValueError):
        return 0
