"""Pages behind a tunnel."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from cluster.inventory import ROOT, Cluster
from cluster.ssh.fanout import Executor
from lab.record import Lab
from tests.conftest import PATIENCE_S

LISTENING = "ss -Htln | awk '{print $4}' | sort -u"


@contextlib.contextmanager
def tensorboard(lab: Lab, *words: str) -> Iterator[tuple["subprocess.Popen[str]", dict[str, str]]]:
    """`inv tensorboard`, once it has said its address. It is ended by Ctrl-C."""
    task = subprocess.Popen(
        [sys.executable, "-m", "invoke", "tensorboard", *words, "--json", "--no-browser"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "CLUSTER": f"lab:{lab.name}"},
    )
    try:
        assert task.stdout and task.stderr
        line = task.stdout.readline()
        assert line, task.stderr.read()
        yield task, json.loads(line)
    finally:
        if task.poll() is None:
            task.send_signal(signal.SIGINT)
        try:
            task.wait(PATIENCE_S)
        finally:
            task.kill()


def fetched(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as page:
        return page.status, page.read()


def listening(reach: Executor, cluster: Cluster) -> dict[str, set[str]]:
    """Addresses on which each host listens, but for its sshd's."""
    results = reach.run(cluster.hosts, LISTENING).check()
    return {h.address: {a for a in r.text.split() if not a.endswith(":22")} for h, r in results.items()}
