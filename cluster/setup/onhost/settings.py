"""Settings of a host that health judges: how they are now, and some of them changed. Changing needs root."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import shutil
import subprocess
from typing import Any

from cluster.ssh.onhost.frame import say
from cluster.ssh.onhost.telling_line import telling_line

GPU_FIELDS = (
    "index", "persistence_mode", "clocks.applications.memory", "clocks.applications.graphics", "clocks.max.memory",
    "clocks.max.graphics", "power.limit", "power.default_limit",
)  # fmt: skip
_LIMIT_S = 30.0
_SBIN = ("/usr/sbin", "/sbin")  # on the PATH of root alone, often


def now(address: str, kernel: list[str]) -> dict[str, Any]:
    """How they are: of each GPU, of the card with this address, and these of the kernel, as far as they are there."""
    told: dict[str, Any] = {"gpus": [], "card": None, "kernel": {}}
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader,nounits"]
        rows = csv.reader(_said(query).splitlines(), skipinitialspace=True)
        told["gpus"] = [{n: row[i] for i, n in enumerate(GPU_FIELDS)} for row in rows if len(row) == len(GPU_FIELDS)]
    for link in _links():
        if any(a.get("local") == address for a in link["addr_info"]):
            told["card"] = [link["ifname"], link["mtu"]]
    for name in kernel:
        path = "/proc/sys/" + name.replace(".", "/")
        if os.path.exists(path):
            with open(path) as file:
                told["kernel"][name] = " ".join(file.read().split())
    return told


def _links() -> list[dict[str, Any]]:
    """The network cards, each with its addresses; none on a host without `ip`: it is left its MTU."""
    with contextlib.suppress(FileNotFoundError):
        return list(json.loads(_said(["ip", "-j", "addr"]) or "[]"))
    return []


def change(commands: list[list[str]]) -> list[str]:
    """Run them one after another; why each failed, "" for one that did not."""
    why = []
    for words in commands:
        try:
            _said(words)
            why.append("")
        except (OSError, RuntimeError) as e:
            why.append(str(e))
    return why


def main(verb: str, *arguments: Any) -> None:
    """`now KERNEL ADDRESS`: say how they are; `change COMMANDS`: say what became of each."""
    say(now(arguments[1], arguments[0]) if verb == "now" else change(*arguments))


def _said(words: list[str]) -> str:
    """What a command prints. Raises RuntimeError with its own words."""
    path = os.pathsep.join([os.environ.get("PATH", ""), *_SBIN])
    environment = {**os.environ, "PATH": path, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_LIMIT_S, env=environment
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{words[0]} did not end within {_LIMIT_S:g} s") from None
    if done.returncode:
        raise RuntimeError(
            f"{words[0]}: {telling_line(done.stderr) or telling_line(done.stdout) or f'exited {done.returncode}'}"
        )
    return done.stdout
