"""Program that the ranks of a job run: one of the project's trainers, or the operator's own."""

import dataclasses
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from cluster.errors import ConfigError
from cluster.hosts import Host
from cluster.packages.command_parser import LAUNCHERS, what_runs

PER = ("gpu", "node", "once")
UNKNOWN = "?"  # trainer of a damaged record
_OF_A_SHELL = re.compile(r"[\s;&|<>$`(){}*?]")
_INTERPRETERS = re.compile(r"(python|pypy)[\d.]*|(ba|da|k|z)?sh|env|torchrun|accelerate|deepspeed|time|nice")


@dataclass(frozen=True, kw_only=True)
class Program:
    """Program that the ranks of a job run: the operator's own, or one of this project's trainers."""

    words: tuple[str, ...]  # its command line; of a trainer only its flags
    per: str = "gpu"  # "gpu": once per slot; "node": once per host; "once": on one host alone
    trainer: str = ""  # module of this project's trainer; "" for the operator's own program
    python: str = ""  # interpreter of a trainer, at the same path on all hosts; "": the project's

    @property
    def is_built_in(self) -> bool:
        """Return True for a trainer of this project. It prints how it ended, sends heartbeats and saves when asked."""
        return bool(self.trainer)

    @classmethod
    def of(cls, words: Sequence[str], per: str) -> "Program":
        """Return the program that was typed.

        One word with shell syntax becomes a `bash -c` line. Raises ConfigError.
        """
        if per not in PER:
            raise ConfigError(f"--per is {per!r}: give one of {', '.join(PER)}")
        if not words or not words[0]:
            raise ConfigError("there is no program: give it after --, as in: inv train.run -- python train.py --lr 0.1")
        if len(words) == 1 and _OF_A_SHELL.search(words[0]) and not Path(words[0]).exists():
            words = ("bash", "-c", words[0])
        return cls(words=tuple(words), per=per)

    def command(self, python: str, folder: str) -> tuple[str, ...]:
        """Return its command line in a job with this folder.

        python: the project's interpreter.
        """
        if not self.trainer:
            return self.words
        return (self.python or python, "-m", self.trainer, "--job-dir", folder, *self.words)

    @property
    def default_name(self) -> str:
        """Return the default name of its job: the script, the module or the binary; `run` for a shell's line."""
        python = _python_program(self.words)
        if "code" in python:
            return "run"
        if "module" in python:
            return _in_letters(python["module"].rpartition(".")[2])
        rest = [python["script"]] if "script" in python else [w for w in self.words if "=" not in w]
        while rest and _INTERPRETERS.fullmatch(PurePath(rest[0]).name):
            rest = rest[1:]
            while rest and rest[0].startswith("-"):
                if rest[0] == "-c":
                    return "run"
                rest = rest[1:]
        return _in_letters(PurePath(rest[0] if rest else "").stem)


def _python_program(words: Sequence[str]) -> dict[str, str]:
    """Return what a Python interpreter in this command line runs, or else the first word that looks like a script."""
    script = next((n for n, word in enumerate(words) if word.endswith((".py", ".sh"))), len(words))
    for n in range(script):  # skip `nice`, `time`, `uv run` or the like
        found = what_runs(words[n:])
        if found and found[1].get("module") not in LAUNCHERS:
            return found[1]
    return {"script": words[script]} if script < len(words) else {}


def _in_letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:30].rstrip("-") or "run"


def seats(hosts: Iterable[Host], per: str) -> tuple[Host, ...]:
    """Return the hosts with the slots for mpirun: one for each start of the program."""
    return tuple(hosts) if per == "gpu" else tuple(dataclasses.replace(h, slots=1) for h in hosts)
