"""Node names that scripts for AWS's own deep-learning cluster expect, kept up to date. Python 3.9, as root.

    python3 aws_node_names.py LIST SHARED LOGIN   on every node: follows LIST, `ADDRESS SLOTS` per line
    ... LIST SHARED LOGIN PROJECT REGION NAME     on the master: also writes LIST, as the stack's nodes change

Login shells get DEEPLEARNING_WORKERS_COUNT, DEEPLEARNING_WORKERS_PATH, DEEPLEARNING_WORKER_GPU_COUNT and EFS_MOUNT.
Programs and ssh get the hosts deeplearning-master and deeplearning-worker1 to N; a master that trains is a worker, too.
The master gets the `hosts` file of the DLAMI's Horovod examples, unless somebody has edited it.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import shlex
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable

LOOK_S, ASK_S = 5.0, 60.0  # interval of looks at the list; interval of AWS queries, once there is a list
WORKERS, HOSTS = "/opt/deeplearning/workers", "/opt/deeplearning/hosts"
PROFILE, SSH = "/etc/profile.d/deeplearning.sh", "/etc/ssh/ssh_config.d/61-deeplearning.conf"
EXAMPLES = ("hosts", "examples/horovod/tensorflow/hosts")  # in the login user's home, if the folder exists
_BEGIN, _END = "# dlami-cluster: names of the nodes, kept by dlami-names", "# dlami-cluster: end of the names"
_LINE = re.compile(r"(\d{1,3}(?:\.\d{1,3}){3}) (\d{1,4})")

Node = tuple[str, int]  # address, slots


def read(text: str) -> list[Node]:
    """Parse a list of nodes, the master first, with 0 slots if it does not train.

    Return [] if any line is malformed.
    """
    found = [_LINE.fullmatch(line) for line in text.splitlines()]
    return [(m[1], int(m[2])) for m in found if m] if all(found) else []


def listed(answer: str) -> str:
    """Return the list of nodes without spares from the answer of `cfn.replace_instance … hosts`; "" if malformed."""
    try:
        said = json.loads(answer)
        hosts = sorted((h for h in said["hosts"] if not h["is_spare"]), key=lambda h: int(h["rank"]))
        text = "".join(f"{h['address']} {int(h.get('slots', said['slots']))}\n" for h in hosts)
    except (ValueError, KeyError, TypeError):
        return ""
    return text if read(text) else ""


def files(nodes: list[Node], shared: str, *, is_master: bool) -> dict[str, str]:
    """Return the content by path of all files on a node but /etc/hosts. The master is `localhost` to itself."""
    names = named(nodes)
    seen = [("localhost" if is_master and n == 0 else node[0], node[1]) for n, node in enumerate(nodes)]
    training = _that_train(nodes)
    return {
        WORKERS: "".join(f"deeplearning-worker{n}\n" for n in range(1, len(training) + 1)),
        HOSTS: "".join(f"{address} slots={slots}\n" for address, slots in seen if slots),
        SSH: "".join(f"Host {name}\n    HostName {address}\n" for address, name in names),
        PROFILE: "".join(
            f"export {name}={shlex.quote(value)}\n"
            for name, value in {
                "EFS_MOUNT": shared,
                "DEEPLEARNING_WORKERS_PATH": WORKERS,
                "DEEPLEARNING_WORKERS_COUNT": str(len(training)),
                "DEEPLEARNING_WORKER_GPU_COUNT": str(training[0][1] if training else 0),
            }.items()
        ),
    }


def named(nodes: list[Node]) -> list[tuple[str, str]]:
    """Return address and name of each node. A master that trains has two names."""
    workers = [(address, f"deeplearning-worker{n}") for n, (address, _) in enumerate(_that_train(nodes), 1)]
    return [(nodes[0][0], "deeplearning-master"), *workers]


def _that_train(nodes: list[Node]) -> list[Node]:
    return [(address, slots) for address, slots in nodes if slots]


def with_names(hosts: str, nodes: list[Node]) -> str:
    """Return the text of /etc/hosts with these names in place of earlier ones."""
    kept = re.sub(rf"{re.escape(_BEGIN)}\n.*?{re.escape(_END)}\n", "", hosts, flags=re.S)
    kept += "" if kept.endswith("\n") or not kept else "\n"
    return kept + "".join(f"{line}\n" for line in (_BEGIN, *(f"{a} {name}" for a, name in named(nodes)), _END))


def write(path: str, text: str) -> None:
    """Write a file atomically, mode 0644."""
    folder = os.path.dirname(path)
    os.makedirs(folder, exist_ok=True)
    handle, fresh = tempfile.mkstemp(dir=folder, prefix=".names-")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.chmod(fresh, 0o644)
        os.replace(fresh, path)
    except OSError:
        os.unlink(fresh)
        raise


def write_names(nodes: list[Node], shared: str, *, is_master: bool, into: str = "") -> str:
    """Write all files of this node below `into`, where they differ. Return the earlier text of the `hosts` file."""
    before = text_of(into + HOSTS)
    hosts = with_names(text_of(into + "/etc/hosts"), nodes)
    if hosts != text_of(into + "/etc/hosts"):
        with open(into + "/etc/hosts", "w") as file:  # written in place: it may be a mount point
            file.write(hosts)
    for path, text in files(nodes, shared, is_master=is_master).items():
        if text != text_of(into + path):
            write(into + path, text)
    return before


def write_examples(home: str, before: str, text: str) -> None:
    """Write the `hosts` file where the Horovod examples look for it, unless somebody has edited the one there."""
    for name in EXAMPLES:
        path = os.path.join(home, name)
        if os.path.isdir(os.path.dirname(path)) and (not os.path.lexists(path) or text_of(path) == before != text):
            with contextlib.suppress(OSError):
                write(path, text)


def text_of(path: str) -> str:
    """Return the text of a file; "" if it is missing."""
    with contextlib.suppress(OSError), open(path) as file:
        return file.read()
    return ""


def ask(login: str, project: str, region: str, name: str) -> str:
    """Query AWS for the nodes as the login user and return the list; "" if there is no answer.

    A project folder that is a link, or that another user owns, is refused: its owner's program would run here.
    """
    # A process, because this is root's program of the system's Python: the project's runs as the login user.
    words = [f"{project}/.venv/bin/python", "-m", "cfn.replace_instance", region, name, "hosts"]
    with contextlib.suppress(OSError, KeyError, subprocess.SubprocessError):
        user, found = pwd.getpwnam(login), os.lstat(project)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (0, user.pw_uid):
            return ""
        done = subprocess.run(
            words,
            cwd=project,
            capture_output=True,
            text=True,
            timeout=ASK_S,
            stdin=subprocess.DEVNULL,
            user=user.pw_uid,
            group=user.pw_gid,
            extra_groups=[],
        )
        return listed(done.stdout)
    return ""


def follow(list_file: str, shared: str, login: str, of_master: Iterable[str] = ()) -> None:
    """Keep the names up to date, forever."""
    where, asked, seen = tuple(of_master), 0.0, ""
    while True:
        if where and (not asked or time.monotonic() - asked > (ASK_S if seen else LOOK_S)):
            asked = time.monotonic()
            text = ask(login, *where) if where else ""
            if text and text != text_of(list_file):
                write(list_file, text)
        text = text_of(list_file)
        nodes = read(text)
        if nodes and text != seen:
            before = write_names(nodes, shared, is_master=bool(where))
            if where:
                _as_user(login, before)
            seen = text
        time.sleep(LOOK_S)


def _as_user(login: str, before: str) -> None:
    """Write the examples' `hosts` file as the login user, in whose home it is."""
    user = pwd.getpwnam(login)
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setgroups([])
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
        write_examples(user.pw_dir, before, text_of(HOSTS))
    finally:
        os._exit(0)


if __name__ == "__main__":
    follow(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
