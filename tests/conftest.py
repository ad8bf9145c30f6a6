"""What tests share: test data, and a lab of real hosts."""

import contextlib
import gc
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cluster.inventory import ROOT, Cluster, load_cluster
from cluster.jobs.claim import NAME_VARIABLE
from cluster.locate import lab_names
from cluster.ssh import connections
from cluster.ssh.fanout import Executor
from lab import lab as labs
from lab import nodes
from lab.record import Lab, LabHost
from tests import drawn

pytest_plugins = ["tests.examples", "tests.left_out", "tests.leftovers", "tests.order"]
WORKERS: set[str] = set()
Inv = Callable[..., "subprocess.CompletedProcess[str]"]
NOT_YET = (LookupError, OSError, ValueError)  # what reading raises of a thing that is still to come
PATIENCE_S = float(os.environ.get("DLAMI_TEST_PATIENCE_S", "300"))
"""Before something is said never to come: what takes a second may take a busy machine a minute."""

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # as the trainers do, whichever is imported first

# Tests start hundreds of Pythons: each would compile every module anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Tests write paths of their folders into lines of shell, and sockets into them, whose paths are at most 107 bytes. What
# a hostile path does is the subject of tests that make one.
if not re.fullmatch(r"[\w./-]{1,32}", tempfile.gettempdir()):
    tempfile.tempdir = os.environ["TMPDIR"] = next(p for p in ("/tmp", "/var/tmp", "/dev/shm") if os.access(p, os.W_OK))

gc.set_threshold(50_000)  # a sixth of what tests of cfn cost was the search for dead cycles among thousands of tests

# Where this run was started with these ignored (by `nohup`, or by a shell with `&`) its children would ignore them too.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def ended(number: int, frame: object) -> None:
    """SIGTERM ends the run as Ctrl-C does: fixtures take down what they made."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pytest.exit("ended by SIGTERM", 128 + number)


signal.signal(signal.SIGTERM, ended)


def pytest_collection_finish() -> None:
    """What was collected and imported stays to the end: nothing is searched in it for what is dead."""
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodeready(node: Any) -> None:
    """Under pytest-xdist: the process that a worker is. Its labs have its number in their names."""
    WORKERS.add(str(node.gateway._rinfo().pid % 10_000_000))


def pytest_unconfigure() -> None:
    """Takes down what workers left that were killed: an interrupted run gives each ten seconds to end."""
    for name in lab_names() if WORKERS else ():
        if name.strip("abcdefghijklmnopqrstuvwxyz") in WORKERS:
            labs.down(name)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`imagenet-mini/` and `coco-mini/`: photographs where they are at hand, drawn pictures in the same layout if not."""
    return drawn.photographs() or drawn.draw(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def torch_python() -> Path:
    """The interpreter of an environment that has PyTorch; where `make torch` could not make it, the test is skipped."""
    python = ROOT / ".torch/bin/python"
    if not (python.parent.parent / ".installed").exists():
        pytest.skip("PyTorch is not installed: 'make torch' as root gets the distribution's")
    return python


@pytest.fixture(scope="session", autouse=True)
def own_folders() -> Iterator[None]:
    """Open connections and what commands keep for later stay in a folder of this test run, and end with it."""
    with tempfile.TemporaryDirectory(prefix="dl-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", folder)
        patch.setenv("XDG_CACHE_HOME", f"{folder}/cache")
        patch.setenv(
            NAME_VARIABLE, f"dlami-{Path(folder).name}"
        )  # what other runs train on localhost is not in the way
        yield
        connections.disconnect()


@pytest.fixture(scope="session")
def lab_allowed() -> None:
    """What takes this needs a lab: it is marked so, and left out where none can be made (tests/left_out.py)."""


@pytest.fixture(scope="session")
def lab_name(lab_allowed: None) -> Iterator[str]:
    """A lab name no other test run on this machine has; whatever has it is gone at the end."""
    name = f"t{os.getpid() % 10_000_000}"
    yield name
    if labs.is_anything_left(name):
        labs.down(name)


@pytest.fixture(scope="session")
def session_lab(lab_name: str) -> Lab:
    """Four hosts of two slots, for the whole run."""
    return labs.up(lab_name, num_hosts=4, slots=2, may_mount=True)


@pytest.fixture
def lab(session_lab: Lab) -> Iterator[Lab]:
    """The lab, healed after the test whatever it did."""
    yield session_lab
    labs.heal(session_lab, session_lab.hosts)


@pytest.fixture
def cluster(lab: Lab) -> Cluster:
    """The lab's hosts as tasks see them."""
    return load_cluster(f"lab:{lab.name}")


@pytest.fixture
def reach(cluster: Cluster) -> Iterator[Executor]:
    """Connections to the lab's hosts."""
    with Executor(cluster) as opened:
        yield opened


@pytest.fixture
def inv(lab: Lab, tmp_path: Path) -> Inv:
    """The command line, as an operator of the lab uses it: `inv("run", "--", "hostname")`."""
    return operator_of(lab, tmp_path)


@pytest.fixture(scope="session")
def four_hosts(lab_allowed: None) -> Iterator[Lab]:
    """Four hosts of one slot, where every rank is on a host of its own; for the whole run, and nobody breaks them."""
    name = f"f{os.getpid() % 10_000_000}"
    try:
        yield labs.up(name, num_hosts=4, slots=1, may_mount=True)
    finally:
        if labs.is_anything_left(name):
            labs.down(name)


@pytest.fixture(scope="session")
def four_inv(four_hosts: Lab, tmp_path_factory: pytest.TempPathFactory) -> Inv:
    """The command line on these."""
    return operator_of(four_hosts, tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def session_inv(session_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Inv:
    """The command line on the session's lab, for fixtures that several tests share."""
    return operator_of(session_lab, tmp_path_factory.mktemp("cache"))


def operator_of(lab: Lab, cache: Path, cluster: str = "") -> Inv:
    """`inv` on this lab, or on a folder that describes its hosts otherwise, with a cache folder of its own."""

    def run(*words: object, timeout: float = PATIENCE_S) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "invoke", *map(str, words)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, "CLUSTER": cluster or f"lab:{lab.name}", "XDG_CACHE_HOME": str(cache)},
        )

    return run


@contextlib.contextmanager
def silenced(lab: Lab, hosts: Sequence[LabHost]) -> Iterator[None]:
    """While it lasts these hosts' packets to this machine get lost, and nobody is told: not even the kernel finds out,
    as it does by itself, sooner or later, for a host whose cable is out."""
    pids = nodes.running(lab.name)

    def route(verb: str) -> None:
        for host in hosts:
            subprocess.run(
                [
                    "nsenter",
                    "--net",
                    "--target",
                    str(pids[host.name]),
                    "ip",
                    "route",
                    verb,
                    "blackhole",
                    lab.bridge_address,
                ],
                check=True,
                timeout=300,
            )

    route("add")
    try:
        yield
    finally:
        route("del")


def unused_port() -> int:
    """A port of the loopback for who binds it later: below those that the kernel gives to any connection meanwhile."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(first // 2, first)
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("127.0.0.1", port))
            return port


def wait_for(condition: Callable[[], bool], timeout_s: float, what: str, look_s: float = 0.05) -> None:
    """Until `condition` holds; fails the test after the time, which is PATIENCE_S at least.

    What it cannot be asked of yet does not hold: a file, a row or a field that is still to come. A look that takes long,
    as a task does that is typed, is made again after twice its time: others need the processor.
    """
    limit_s = max(timeout_s, PATIENCE_S)
    deadline = time.monotonic() + limit_s
    while True:
        missing: Exception | None = None
        began = time.monotonic()
        try:
            if condition():
                return
        except NOT_YET as e:
            missing = e
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {limit_s:g} s: {what}") from missing
        time.sleep(max(look_s, min(2 * (time.monotonic() - began), 5.0)))
