"""Launch of ranks on a job's hosts: over SSH between machines, or inside the pods of one job on Kubernetes."""

import os
from dataclasses import dataclass
from typing import Protocol

from cluster.ssh.failure import Reason

CONFIG_VARIABLE = "DLAMI_SSH_CONFIG"  # names the file that ssh reads instead of the user's and the machine's settings


class Launcher(Protocol):
    """Interface to the environment in which mpirun starts ranks: machines with SSH, or pods."""

    @property
    def ssh_settings(self) -> list[str]:
        """Return the options that each ssh begins with."""

    @property
    def has_machines(self) -> bool:
        """Return True if a host is a whole machine, with its kernel's log, services and its own root disk."""

    @property
    def who_sent_sigterm(self) -> str:
        """Return the cause of a job whose supervisor was sent a SIGTERM, but not by us or a shutdown."""

    def may_be_gone(self, failed: Reason | None) -> bool:
        """Return True if a host that failed so may have ended since, and is to be asked once more."""

    def is_gone(self, failed: Reason | None) -> bool:
        """Return True if a host that failed so has ended with all of its processes."""


class OverSsh:
    """Launcher of machines that ssh reaches. A machine that does not answer may still run ranks."""

    ssh_settings: list[str] = []  # noqa: RUF012 - read only
    has_machines = True
    who_sent_sigterm = (
        "its supervisor was told to end (SIGTERM) by something other than 'inv jobs.stop', such as a shutdown of the "
        "master"
    )

    def may_be_gone(self, failed: Reason | None) -> bool:
        """Return False: a machine keeps its processes while it is cut off."""
        return False

    def is_gone(self, failed: Reason | None) -> bool:
        """Return False: a machine keeps its processes while it is cut off."""
        return False


@dataclass(frozen=True)
class InPods:
    """Launcher of a job's pods, by a supervisor in the launcher pod. A pod ends with its sshd."""

    settings: str  # file with the ports and keys of the job

    has_machines = False
    who_sent_sigterm = "its launcher's pod was told to end: by 'inv eks.jobs.stop', or because its node goes"

    @property
    def ssh_settings(self) -> list[str]:
        """Return the option that names the job's own settings."""
        return ["-F", self.settings]

    def may_be_gone(self, failed: Reason | None) -> bool:
        """Return True if the connection broke: the pod has ended, or only the connection."""
        return failed is Reason.BROKE_OFF

    def is_gone(self, failed: Reason | None) -> bool:
        """Return True if the pod's name or its sshd is gone."""
        return failed in (Reason.UNKNOWN_NAME, Reason.REFUSED, Reason.NO_ROUTE)


def launcher() -> Launcher:
    """Return the launcher of this process: inside pods if a job's settings are named, else over SSH."""
    settings = os.environ.get(CONFIG_VARIABLE)
    return InPods(settings) if settings else OverSsh()
