"""Settings of a host that health checks: reads them, and changes some. Changes need root."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import shutil
import subprocess
from typing import Any

from cluster.ssh.onhost.frame import say
from cluster.ssh.onhost.pci import devices
from cluster.ssh.onhost.telling_line import telling_line

GPU_FIELDS = (
    "index", "persistence_mode", "clocks.applications.memory", "clocks.applications.graphics", "clocks.max.memory",
    "clocks.max.graphics", "power.limit", "power.default_limit",
)  # fmt: skip
_LIMIT_S = 30.0
_SBIN = ("/usr/sbin", "/sbin")  # often on root's PATH alone


class CommandFailed(RuntimeError):
    """Error: a command failed. What it printed before is `printed`."""

    def __init__(self, why: str, printed: str = "") -> None:
        super().__init__(why)
        self.printed = printed


def now(address: str, kernel: list[str]) -> dict[str, Any]:
    """Return the settings of each GPU, of the card with this address, and of the kernel, as far as they exist."""
    told: dict[str, Any] = {"gpus": [], "gpus_unread": "", "card": None, "kernel": {}}
    if shutil.which("nvidia-smi"):
        told["gpus"], told["gpus_unread"] = _gpus()
    for link in _links():
        if any(a.get("local") == address for a in link["addr_info"]):
            told["card"] = [link["ifname"], link["mtu"]]
    for name in kernel:
        path = "/proc/sys/" + name.replace(".", "/")
        if os.path.exists(path):
            with open(path) as file:
                told["kernel"][name] = " ".join(file.read().split())
    return told


def _gpus() -> tuple[list[dict[str, str]], str]:
    """Return the settings of each GPU that answers, and why others do not; "" if all do.

    One dead GPU makes nvidia-smi fail although it prints the others' rows.
    """
    printed, why = "", ""
    try:
        printed = _said(["nvidia-smi", f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader,nounits"])
    except CommandFailed as e:
        printed, why = e.printed, str(e)
    rows = [row for row in csv.reader(printed.splitlines(), skipinitialspace=True) if len(row) == len(GPU_FIELDS)]
    count = devices()["gpus"]
    if not why and count > len(rows):
        why = f"of the GPUs on the PCI bus nvidia-smi knows {len(rows)} of {count}"
    return [dict(zip(GPU_FIELDS, row)) for row in rows], why if rows or count else ""  # noqa: B905 - Python 3.9


def _links() -> list[dict[str, Any]]:
    """Return the network devices with their addresses; [] on a host without `ip`, whose MTU is then left alone."""
    with contextlib.suppress(FileNotFoundError):
        return list(json.loads(_said(["ip", "-j", "addr"]) or "[]"))
    return []


def change(commands: list[list[str]]) -> list[str]:
    """Run the commands in order. Return why each failed; "" if it did not."""
    why = []
    for words in commands:
        try:
            _said(words)
            why.append("")
        except (OSError, RuntimeError) as e:
            why.append(str(e))
    return why


def main(verb: str, *arguments: Any) -> None:
    """Run `now KERNEL ADDRESS`: send the settings; or `change COMMANDS`: send each command's result."""
    say(now(arguments[1], arguments[0]) if verb == "now" else change(*arguments))


def _said(words: list[str]) -> str:
    """Return what a command prints. Raises CommandFailed with the command's own message."""
    path = os.pathsep.join([os.environ.get("PATH", ""), *_SBIN])
    environment = {**os.environ, "PATH": path, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_LIMIT_S, env=environment
        )
    except subprocess.TimeoutExpired:
        raise CommandFailed(f"{words[0]} did not end within {_LIMIT_S:g} s") from None
    if done.returncode:
        why = telling_line(done.stderr) or telling_line(done.stdout) or f"exited {done.returncode}"
        raise CommandFailed(f"{words[0]}: {why}", done.stdout)
    return done.stdout
