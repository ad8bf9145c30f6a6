"""Rank of a process, read from the environment that its launcher set."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from trainer.common.files.errors import ConfigError

_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_OPEN_MPI = tuple(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))


@dataclass(frozen=True)
class DistEnv:
    """Ranks of a process: rank and size, over all hosts and on its own."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> "DistEnv":
        """Read the ranks from torchrun's variables, else Open MPI's. Without either the process is alone.

        Raises ConfigError if a variable is not a number.
        """
        names = next((n for n in (_TORCHRUN, _OPEN_MPI) if all(environment.get(name) for name in n)), ())
        try:
            return cls(*(int(environment[name]) for name in names))
        except ValueError as e:
            raise ConfigError(f"the environment has {' and '.join(names)}, but not all are numbers: {e}") from e
