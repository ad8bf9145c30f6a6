"""Container wrapper of a rank: mpirun and its daemons are outside, and start one container per rank.

`contained.py ENGINE IMAGE [--bind FOLDER] … -- WORDS`. The container shares the host's network, processes and shared
memory. Ranks therefore find one another, and are found, as if there were no container.
"""

from __future__ import annotations

import glob
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

# Variables about the host's files or session. All others are passed by name, so that no value is visible.
_OF_THE_HOST = re.compile(
    r"PATH|PWD|OLDPWD|SHELL|SHLVL|USER|LOGNAME|MAIL|TERM|HOSTNAME|_|LD_.*|XDG_.*|SSH_.*|DBUS_.*|SUDO_.*"
    r"|VIRTUAL_ENV|CONDA_.*|PYTHONHOME|PYTHONPATH|BASH_FUNC_.*|LS_COLORS|LESS.*|DEBUGINFOD_.*"
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Ranks in separate containers cannot read each other's memory.
_MPI = {"OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
# The job's PYTHONPATH under another name: setting it directly would replace the image's own.
_MODULES = "DLAMI_PYTHONPATH"
_JOINED = f'export PYTHONPATH="${_MODULES}${{PYTHONPATH:+:$PYTHONPATH}}"; unset {_MODULES}; exec "$0" "$@"'


class RankFacts(NamedTuple):
    """Facts about host and rank that the engine's command line depends on."""

    engine: str
    image: str
    folders: Sequence[str]  # host folders mounted at the same path
    workdir: str
    user: int
    group: int
    has_gpus: bool
    has_fabric: bool
    cores: Sequence[int] = ()  # that its job has of a shared host; () for all


def words(rank: RankFacts, command: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return the engine's command line for a rank."""
    if _MODULES in environment:
        command = ["sh", "-c", _JOINED, *command]
    if rank.engine in ("apptainer", "singularity"):
        gpus = ["--nv"] if rank.has_gpus else []
        binds = [w for f in rank.folders for w in ("--bind", f)]
        return [rank.engine, "--silent", "exec", *gpus, *binds, "--pwd", rank.workdir, rank.image, *command]
    said = [rank.engine, "run", "--rm", "--network=host", "--ipc=host", "--pid=host"]
    if rank.engine == "podman":
        said += ["--security-opt=label=disable", "--ulimit=host"]  # rootless podman may not raise limits
        said += ["--userns=keep-id"] if rank.user else []
        said += ["--device=nvidia.com/gpu=all"] if rank.has_gpus else []
    else:
        said += [f"--user={rank.user}:{rank.group}", "--ulimit=memlock=-1:-1"]
        said += ["--gpus=all"] if rank.has_gpus else []
    said += ["--device=/dev/infiniband"] if rank.has_fabric else []
    said += [f"--cpuset-cpus={','.join(map(str, rank.cores))}"] if rank.cores else []
    for folder in rank.folders:
        said += ["--volume", f"{folder}:{folder}"]
    for name in sorted(environment):
        if _NAME.fullmatch(name) and not _OF_THE_HOST.fullmatch(name):
            said += ["--env", name]
    return [*said, "--workdir", rank.workdir, "--entrypoint", command[0], rank.image, *command[1:]]


def main(argv: Sequence[str]) -> None:
    """Replace this process by the engine that runs the rank."""
    at = argv.index("--")
    engine, image, *options = argv[:at]
    home = [os.path.expanduser("~")] if os.getuid() else []  # for root the image's home is kept: it may hold programs
    if not home:
        os.environ.pop("HOME", None)
    folders = [*options[1::2], os.getcwd(), *home, "/tmp"]
    rank = RankFacts(
        engine=engine,
        image=image,
        folders=[f for f in dict.fromkeys(folders) if os.path.isdir(f)],
        workdir=os.getcwd(),
        user=os.getuid(),
        group=os.getgid(),
        has_gpus=bool(glob.glob("/dev/nvidia[0-9]*")),
        has_fabric=os.path.isdir("/dev/infiniband"),
        cores=sorted(os.sched_getaffinity(0)) if os.environ.get("DLAMI_SLOTS") else (),
    )
    os.environ.update(_MPI)
    if modules := os.environ.pop("PYTHONPATH", ""):
        os.environ[_MODULES] = modules
    try:
        os.execvp(engine, words(rank, argv[at + 1 :], os.environ))
    except OSError as e:
        sys.exit(f"{engine}: {(e.strerror or str(e)).lower()}")


if __name__ == "__main__":
    main(sys.argv[1:])
