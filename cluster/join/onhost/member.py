"""Membership of a host in a cluster: its key, the hosts it knows, and how it reaches them, in this user's `~/.ssh`.

Everything is in `~/.ssh/dlami-cluster`, except a line in `authorized_keys` and one in `config`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile

from cluster.join.onhost.files import read, write
from cluster.ssh.onhost.frame import say

FOLDER = "dlami-cluster"  # below ~/.ssh
_BYTE_ORDER = "\ufeff"  # byte order mark that some editors put at a file's beginning
INCLUDE = f"Include {FOLDER}/*.conf"


def key_pair(name: str) -> tuple[str, str]:
    """Return the cluster's private and public key on this host, after making them if there are none."""
    folder = _folder()
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        made = tempfile.mkdtemp(dir=folder)  # so that it appears complete, readable by this user alone
        try:
            new = os.path.join(made, "key")
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"dlami-cluster {name}", "-f", new]
            subprocess.run(words, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=60)
            os.rename(new + ".pub", path + ".pub")
            os.rename(new, path)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    with open(path) as private, open(path + ".pub") as public:
        return private.read(), public.read().strip()


def join(name: str, private: str, public: str, known_hosts: str, config: str) -> list[str]:
    """Write this host's files, and return the names of those that changed."""
    folder = _folder()
    files = {name: private, f"{name}.pub": f"{public}\n", f"{name}.known_hosts": known_hosts, f"{name}.conf": config}
    changed = [f for f, text in files.items() if write(os.path.join(folder, f), text)]
    ssh = os.path.dirname(folder)
    keys, settings = os.path.join(ssh, "authorized_keys"), os.path.join(ssh, "config")
    there = read(keys)
    if public not in _lines(there):
        write(keys, there + ("\n" if there and not there.endswith("\n") else "") + public + "\n")
        changed.append("authorized_keys")
    there = read(settings)
    if INCLUDE not in _lines(there):  # at the top: below a `Host` line it would apply to that host alone
        mark = _BYTE_ORDER if there.startswith(_BYTE_ORDER) else ""
        write(settings, f"{INCLUDE}\n{there.removeprefix(mark)}")  # ssh would read the mark as part of the first word
        changed.append("config")
    return changed


def _lines(text: str) -> list[str]:
    return [line.rstrip("\r") for line in text.removeprefix(_BYTE_ORDER).split("\n")]


def main(verb: str, *arguments: str) -> None:
    """Run `key NAME` and send the key pair, or `join NAME PRIVATE PUBLIC KNOWN_HOSTS CONFIG` and send what changed."""
    os.umask(0o077)
    say(list(key_pair(*arguments)) if verb == "key" else join(*arguments))


def _folder() -> str:
    folder = os.path.join(os.path.expanduser("~"), ".ssh", FOLDER)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return folder
