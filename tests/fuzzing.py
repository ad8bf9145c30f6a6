"""Programs fed with damaged input for some seconds, in a process of their own so that a crash of native code is seen.

Ten seconds each in `make test`; DLAMI_FUZZ_SECONDS sets another time, DLAMI_FUZZ_SEED another first number.
"""

import contextlib
import copy
import itertools
import json
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import settings

Trial = Callable[[np.random.Generator], None]
SECONDS = float(os.environ.get("DLAMI_FUZZ_SECONDS", "10"))
HANGS_S = 240.0  # without another trial
FIRST = int(os.environ.get("DLAMI_FUZZ_SEED", "0"))


def at_least(examples: int) -> int:
    """The examples of a property test that needs more than others; as many as all have where `make fuzz` runs it."""
    return max(examples, settings().max_examples)


def survives(trial: Trial, tmp_path: Path, least: int) -> None:
    """Calls `trial` with one numbered generator after the other until the time is over, and so often at least.

    Fails with the number of the trial that raised, crashed or hung, so that it can be repeated alone.
    """
    log = tmp_path / "trial"
    log.write_text("")
    child = multiprocessing.get_context("spawn").Process(target=_trials, args=(trial, log, least))
    child.start()
    before = None
    while child.is_alive() and (now := log.read_text()) != before:
        before = now
        child.join(HANGS_S)
    is_hanging = child.is_alive()
    if is_hanging:
        child.kill()
        child.join()
    last, _, text = log.read_text().partition("\n")
    how = "hung" if is_hanging else f"ended with {child.exitcode} (a signal, if negative)"
    assert child.exitcode == 0, f"trial {last} of {trial} {how}\n{text}"


def _trials(trial: Trial, log: Path, least: int) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what native code and warnings say would fill the report
    until = time.monotonic() + SECONDS
    with log.open("w") as file:
        for number in itertools.count(FIRST):
            file.seek(0)
            file.write(f"{number}\n")
            file.flush()
            try:
                trial(np.random.default_rng(number))
            except BaseException:
                file.write(traceback.format_exc())
                raise
            if time.monotonic() > until and number >= FIRST + least:
                return


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """The data with bytes changed, lost, doubled or inserted, in one of the ways that files come to harm."""
    out = bytearray(data)
    at = int(rng.integers(len(out)))
    end = min(len(out), at + int(rng.integers(1, 2 + len(out) // 5)))
    match int(rng.integers(7)):
        case 0:
            for place in rng.integers(len(out), size=int(rng.integers(1, 6))):
                out[place] = int(rng.integers(256))
        case 1:
            out[at] ^= 1 << int(rng.integers(8))
        case 2:  # in the header, where sizes stand
            place = int(rng.integers(min(len(out), 700)))
            value = int(rng.choice([0, 1, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, int(rng.integers(1 << 32))]))
            out[place : place + 4] = value.to_bytes(4, "little" if rng.integers(2) else "big")
        case 3:
            out[at:end] = bytes(end - at)
        case 4:
            del out[at:end]
        case 5:
            out[at:at] = out[at:end]
        case 6:
            out[at:at] = rng.bytes(int(rng.integers(1, 50)))
    return bytes(out)


ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    10**6,
    10**400,
    1e9,
    -1e9,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x",
    [],
    {},
)
ODD += ([[]], [None], ["x"], [float("nan")] * 4, "../../etc/passwd", "/etc/passwd", "\0", "x" * 5000, {"a": 1})
"""What may stand in a JSON file where nobody expects it."""


def other_json(text: bytes, rng: np.random.Generator) -> bytes:
    """The JSON document with one to three of its values replaced, taken out or doubled."""
    value = json.loads(text)
    for _ in range(int(rng.integers(1, 4))):
        places = list(_places(value))
        if not places:
            break
        parent, key = places[rng.integers(len(places))]
        match int(rng.integers(4)):
            case 0:
                del parent[key]
            case 1 if isinstance(parent, list):
                parent.append(copy.deepcopy(parent[key]))
            case _:
                parent[key] = copy.deepcopy(ODD[rng.integers(len(ODD))])
    return json.dumps(value).encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys: Any = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """An empty one, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as path:
        yield Path(path)
