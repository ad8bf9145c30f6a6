"""Tests in a copy of the checkout, in namespaces of its own, by a process that has imported what is not ours already.

An import of pytest, NumPy and boto3 takes seconds on a busy machine, so a process does it once and forks for each run.
"""

import contextlib
import ctypes
import importlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

WARM = (
    "numpy", "cv2", "PIL.Image", "pycocotools.mask", "hypothesis.strategies", "boto3", "botocore.session",
    "moto.server", "troposphere", "invoke", "fabric", "paramiko", "cryptography.x509", "tomlkit", "simplejpeg",
    "matplotlib.pyplot",
)  # fmt: skip
NEW_NAMESPACES = 0x00020000 | 0x08000000 | 0x20000000 | 0x40000000  # mounts, System V's memory, processes, network
FURNISH = """\
mount --make-rprivate /; mount -t proc proc /proc; ip link set lo up; mount --bind "$1" "$1"
case "$3" in /tmp/*)
    there="$2${3#/tmp}"; mkdir -p "$there"; mount --rbind "$3" "$there"; mount -o remount,bind,ro "$there"
esac
mount --rbind "$2" /tmp
case "$3" in /var/tmp/*) ;; *) mount -t tmpfs tmpfs /var/tmp; esac
for folder in /var/lib/dlami-cluster /run /dev/shm; do mkdir -p $folder; mount -t tmpfs tmpfs $folder; done
mount -o remount,bind,ro /
"""
GONE_S = 30.0  # for fixtures to take down what they made
PATIENCE_S = 40.0  # of the tests: who is to come comes within it, where one change at a time is tried


def warm_up() -> None:
    """Import what tests and product import of others. TensorFlow is not among it: it does not outlive a fork."""
    sys.dont_write_bytecode = True
    for name in WARM:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


class Room:
    """A copy of the checkout, itself one of the same commit, with a folder for temporary files beside it."""

    def __init__(self, root: Path, folder: Path, data: Path) -> None:
        self._root, self.folder, self.temporary = root.resolve(), folder, folder.with_name(f"{folder.name}-tmp")
        self.temporary.mkdir(parents=True)
        self._environment = {
            "DLAMI_TEST_DATA": str(data), "PYTHONPATH": str(folder), "DLAMI_TEST_PATIENCE_S": f"{PATIENCE_S:g}",
        }  # fmt: skip
        git = partial(subprocess.run, check=True, capture_output=True, text=True)
        git(["git", "clone", "-q", "--shared", "--no-checkout", str(self._root), str(folder)])
        git(["git", "reset", "-q"], cwd=folder)  # it knows the files, which are copied as they are
        listed = git(["git", "ls-files", "-z"], cwd=root)
        for name in filter(None, listed.stdout.split("\0")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, folder / name, follow_symlinks=False)
        for name in (".venv", ".torch"):
            if (root / name).exists():
                (folder / name).symlink_to((root / name).resolve())

    def tests(self, names: Sequence[str], limit_s: float) -> tuple[str, str]:
        """`passed`, `failed` with the first test that did, `out of time`, or `broken` with why nothing was run."""
        said = self.folder / ".said"
        said.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            try:
                _end_with_parent()
                os.setsid()
                self._run(names, said)
            except BaseException as e:
                said.write_text(f"broken {type(e).__name__}: {e}")
            os._exit(1)
        deadline, is_asked = time.monotonic() + limit_s, False
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.killpg(child, signal.SIGKILL if is_asked else signal.SIGTERM)
                deadline, is_asked = time.monotonic() + GONE_S, True
            time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        if is_asked:
            return "out of time", ""
        state, _, by = (
            said.read_text().partition(" ") if said.exists() else ("failed", "", "the process that ran the tests ended")
        )
        return state, by

    def _run(self, names: Sequence[str], said: Path) -> None:
        """In the child: take namespaces of its own where that is allowed, then run pytest."""
        os.environ.update(self._environment)
        os.environ.pop("CI", None)
        if os.geteuid() == 0:
            if ctypes.CDLL(None, use_errno=True).unshare(NEW_NAMESPACES):
                raise OSError(ctypes.get_errno(), "no namespaces of its own")
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is for the tests, whose process group is the same
            _wait_for(os.fork())  # the first process of the new namespace takes in orphans
            subprocess.run(["sh", "-ec", FURNISH, "room", self.folder, self.temporary, self._root], check=True)
            _wait_for(os.fork())
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with Path(os.devnull).open("r+") as nothing:
            for number in (0, 1, 2):
                os.dup2(nothing.fileno(), number)
        os.chdir(self.folder)
        ours = {path.name for path in self.folder.iterdir() if path.is_dir()}
        for name in [n for n in sys.modules if n.partition(".")[0] in ours]:
            del sys.modules[name]  # they are the checkout's, which nobody changes
        sys.path[:] = [str(self.folder), *(place for place in sys.path if Path(place).resolve() != self._root)]
        heard = _Heard()
        as_given = ("-p", "no:cacheprovider", "-p", "no:tests.order")  # ours would put a lab's before the quick ones
        words = ["-x", "-q", "-m", "not long and not fuzz", *as_given, "-W", "ignore", *names]
        code = pytest.main(words, plugins=[heard])
        elsewhere = [name for name in sys.modules if name.partition(".")[0] in ours and not self._is_of_the_room(name)]
        if elsewhere:
            raise ImportError(f"not from the copy: {elsewhere[0]}")
        state = "passed" if code in (0, 5) else "failed"
        said.write_text(f"{state} {heard.failed}")
        os._exit(0)

    def _is_of_the_room(self, name: str) -> bool:
        """Whether a module was imported from the copy."""
        file = getattr(sys.modules[name], "__file__", None)
        return file is None or Path(file).is_relative_to(self.folder)


class _Heard:
    """The first test that failed."""

    failed = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid


def _wait_for(child: int) -> None:
    """In the parent: end as the child does, having taken in whoever ends before. In the child: go on."""
    if not child:
        _end_with_parent()
    while child:
        pid, status = os.wait()
        if pid == child:
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _end_with_parent() -> None:
    """Whoever ends the run, by whatever signal, leaves no test running."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
