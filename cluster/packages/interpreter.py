"""Interpreter of a program's ranks: words before its own, and variables, the same on every host."""

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass

from cluster.errors import ConfigError


class EnvironmentKind(enum.StrEnum):
    """Kinds of environment that a user can request."""

    REQUIREMENTS = "requirements"  # built on the master, copied to the other hosts
    VENV = "venv"
    CONDA = "conda"
    CONTAINER = "container"


@dataclass(frozen=True, kw_only=True)
class EnvironmentRequest:
    """Environment that the operator requests, and that a job's later attempts use again."""

    kind: EnvironmentKind
    what: str  # a file's name, a folder, an environment's name, an image
    id: str = ""  # id of a built environment; "" until the master returns it, or if nothing is built
    binds: tuple[str, ...] = ()  # further folders of the host that a container sees

    @property
    def option(self) -> str:
        """Return the option as the user types it."""
        return f"--{self.kind} {self.what}"


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """Prefix, variables and folder that a program's ranks get from their environment."""

    wanted: EnvironmentRequest
    prefix: tuple[str, ...] = ()  # words before the program's own
    # PATH holds only the folders before the host's own
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    folder: str = ""  # its folder on every host; "" for an image in an engine's own store


def wanted_by(
    requirements: str, venv: str, conda: str, container: str, binds: tuple[str, ...] = ()
) -> EnvironmentRequest | None:
    """Return the environment that these options request, or None.

    Raises ConfigError if they request two, or if an option's value is not usable.
    """
    given = {
        EnvironmentKind.REQUIREMENTS: requirements,
        EnvironmentKind.VENV: venv,
        EnvironmentKind.CONDA: conda,
        EnvironmentKind.CONTAINER: container,
    }
    asked = [EnvironmentRequest(kind=kind, what=what, binds=binds) for kind, what in given.items() if what]
    if len(asked) > 1:
        raise ConfigError(f"a program has one environment: give {' or '.join(w.option for w in asked)}")
    if binds and (not asked or asked[0].kind is not EnvironmentKind.CONTAINER):
        raise ConfigError("--bind is for --container: every other program sees all folders of its host")
    for folder in binds:
        if not folder.startswith("/") or ":" in folder:
            raise ConfigError(f"--bind {folder!r} is not an absolute path of the hosts, as /opt/dlami/nvme is")
    if asked and asked[0].what.startswith("-"):
        raise ConfigError(f"{asked[0].option}: an option stands where its value is expected")
    return asked[0] if asked else None
