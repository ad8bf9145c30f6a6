"""What the trainer's tests share: data, and programs run as an operator runs them."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import unused_port

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}  # for scripts, which else see only their own folder
Program = Callable[..., subprocess.CompletedProcess[str]]

# As tests run it: root in a container, more ranks than cores, no permission for cross-memory attach.
MPIRUN = (
    "mpirun",
    "--allow-run-as-root",
    "--oversubscribe",
    "--bind-to",
    "none",
    "--mca",
    "btl_vader_single_copy_mechanism",
    "none",
    "--mca",
    "mpi_yield_when_idle",
    "1",
    "--mca",
    "btl",
    "self,vader",
    "--mca",
    "plm",
    "isolated",
)


@pytest.fixture(scope="session")
def imagenet_mini(data: Path) -> Path:
    """157 small images in ImageNet's layout."""
    return data / "imagenet-mini"


def run_program(
    *words: object, timeout_s: float = 1500, check: bool = True, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A program from the project's root; its output is in the assertion when it fails."""
    variables = {**ENVIRONMENT, **(environment or {})}
    done = subprocess.run(
        [str(w) for w in words], cwd=ROOT, env=variables, capture_output=True, text=True, timeout=timeout_s
    )
    assert not check or done.returncode == 0, f"exit {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done


@pytest.fixture(scope="session")
def python() -> Program:
    """`python -m MODULE …` in one process."""
    return lambda *words, **more: run_program(sys.executable, "-m", *words, **more)


class Ranks:
    """Programs under mpirun on this machine.

    Args:
        python: their interpreter; of another than this one the ranks are told where PyTorch's ranks meet.
    """

    def __init__(self, python: Path = Path(sys.executable)) -> None:
        self._python = python

    def __call__(self, count: int, *words: object, **more: Any) -> subprocess.CompletedProcess[str]:
        """Runs a module or a script to its end."""
        return run_program(*self._words(count, words), **more)

    def start(self, count: int, *words: object) -> subprocess.Popen[str]:
        """Starts it in a session of its own."""
        return subprocess.Popen(
            self._words(count, words),
            cwd=ROOT,
            env=ENVIRONMENT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def _words(self, count: int, words: Sequence[object]) -> list[str]:
        module = () if str(words[0]).endswith(".py") else ("-m",)
        return [str(w) for w in (*MPIRUN, *self._meeting(), "-np", count, self._python, *module, *words)]

    def _meeting(self) -> tuple[str, ...]:
        if self._python == Path(sys.executable):
            return ()
        return ("-x", "MASTER_ADDR=127.0.0.1", "-x", f"MASTER_PORT={unused_port()}")


@pytest.fixture(scope="session")
def ranks() -> Ranks:
    """Runs programs on several ranks."""
    return Ranks()


@pytest.fixture(scope="session")
def torch_ranks(torch_python: Path) -> Ranks:
    """Runs programs on several ranks with PyTorch."""
    return Ranks(torch_python)


@pytest.fixture(scope="session")
def mini_shards(imagenet_mini: Path, python: Program, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real images as shards, small enough to train on in seconds."""
    out = tmp_path_factory.mktemp("mini") / "shards"
    python(
        "trainer.imagenet",
        "--raw",
        imagenet_mini,
        "--out",
        out,
        "--shorter-side",
        96,
        "--train-shards",
        3,
        "--validation-shards",
        2,
    )
    return out
