"""Whether a test notices when the product is broken: small changes, drawn by a seed, each against the tests near it.

    inv bench --name mutation                                        the committed result is made so; it takes hours
    python benchmarks/mutation.py --minutes 60                       an hour of it: the next goes on where this ends
    python benchmarks/mutation.py --only cluster/jobs --count 20      on a change: would a test have seen it?

A change is tried in a copy of this checkout: first by the pure test functions that run its line, where `--map` has
asked coverage for them, and by those whose words are most like the changed function's, then by the likeliest of those
that run it with the stand-in of AWS, then by whole files in the order of their distance along the imports; of equally
near ones those without a lab first. The first test that fails has
noticed it, if it passes without the change. What no test notices in `--limit` seconds counts as unnoticed. As root each
run has processes, network and memory of its own, and all of the disk but its copy, /tmp and /var/tmp is read-only:
whatever a changed program ends or removes is in there, and nothing is left.

Each outcome is kept as it comes, and a run goes on where one before it ended, in a later tree too: an outcome holds
while the changed file and the file of the test that noticed it are as they were; one that was not noticed, while all
test files that reach it are, and its limit was no shorter. The rest is tried anew.

Writes benchmarks/results/mutation.json; with --only, another --seed or --count, or a shorter --limit a file in the
folder of --work.
"""

import argparse
import hashlib
import json
import math
import multiprocessing
import os
import platform
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(ROOT))

import mutants  # noqa: E402
from mutants import Mutant  # noqa: E402
from reaching import Reach  # noqa: E402
from room import Room, warm_up  # noqa: E402

RESULTS = Path(__file__).with_name("results")
DATA = Path(os.environ.get("DLAMI_TEST_DATA", ROOT.parent / "shared/data"))
SEED, COUNT, LIMIT_S = 57, 200, 140.0  # of the committed result
ROOM: Room  # of a worker


@dataclass(frozen=True)
class Outcome:
    """What came of one change."""

    state: str  # noticed, survived, out of time, unreached, broken: the run itself
    by: str  # the test that noticed it
    seconds: float


def tried(room: Room, mutant: Mutant, lots: list[list[str]], limit_s: float) -> Outcome:
    """Change, test, and put back."""
    if not lots:
        return Outcome("unreached", "", 0.0)
    path, began = room.folder / mutant.path, time.monotonic()
    text = path.read_bytes()
    broken: list[str] = []  # tests that fail without the change too
    for names in lots:
        while True:
            left_s = limit_s - (time.monotonic() - began)
            if left_s < 1:
                return Outcome("out of time", "", limit_s)
            path.write_bytes(mutant.applied(text))
            try:
                state, by = room.tests([*names, *(f"--deselect={test}" for test in broken)], left_s)
            finally:
                path.write_bytes(text)
            if state in ("out of time", "broken"):
                return Outcome(state, by, limit_s)
            if state == "passed":
                break
            seconds = round(time.monotonic() - began, 1)
            if room.tests([by] if by.startswith("tests/") else names, limit_s)[0] == "passed":
                return Outcome("noticed", by, seconds)
            if by in broken or not by.startswith("tests/"):
                break
            broken.append(by)
    return Outcome("survived", "", round(time.monotonic() - began, 1))


def run(
    drawn: list[Mutant], reach: Reach, known: dict[str, dict[str, Any]], path: Path, asked: argparse.Namespace
) -> None:
    """Try all that are not known yet, `--jobs` at a time, and keep each as it comes."""
    asks = {m.name: (m, _first(known.get(m.name, {}).get("by", ""), reach.lots_of(m))) for m in drawn}
    rows = {name: known[name] for name, ask in asks.items() if name in known and holds(known[name], *ask, asked.limit)}
    left = [ask for name, ask in asks.items() if name not in rows]
    until = time.monotonic() + 60 * asked.minutes if asked.minutes else float("inf")
    keep(path, [rows[m.name] for m in drawn if m.name in rows], asked)
    with (
        tempfile.TemporaryDirectory(prefix="rooms-", dir=asked.work) as folder,
        multiprocessing.get_context("fork").Pool(asked.jobs, settle, [folder]) as workers,
    ):
        for mutant, outcome in workers.imap_unordered(partial(work, asked.limit, until), left):
            if outcome:
                rows[mutant.name] = row_of(*asks[mutant.name], outcome, asked.limit)
                keep(path, [rows[m.name] for m in drawn if m.name in rows], asked)
                said = f"{outcome.state:<11} {outcome.seconds:>6.1f} s  {mutant.name}  {outcome.by}"
                print(f"{len(rows):>4} of {len(drawn)}  {said}", flush=True)


def _first(by: str, lots: list[list[str]]) -> list[list[str]]:
    """The test that noticed a change before goes before all others, where it is still there."""
    test = by.partition("[")[0]
    path, _, name = test.partition("::")
    is_there = bool(name) and (ROOT / path).exists() and f"def {name}(" in (ROOT / path).read_text()
    return [[test], *lots] if is_there else lots


def row_of(mutant: Mutant, lots: list[list[str]], outcome: Outcome, limit_s: float) -> dict[str, Any]:
    """An outcome with what it depends on: the digests of the changed file and of the tests whose word it is."""
    files = _tests_of(outcome.by, lots)
    digests = {"file": _digest([mutant.path]), "tests": _digest(files)}
    return {"change": mutant.name, **digests, "limit_s": limit_s, **vars(outcome)}


def holds(row: dict[str, Any], mutant: Mutant, lots: list[list[str]], limit_s: float) -> bool:
    """Whether an outcome of before is one of this tree."""
    digests = (_digest([mutant.path]), _digest(_tests_of(row["by"], lots)))
    is_same = digests == (row["file"], row.get("tests"))
    return is_same and (row["state"] == "noticed" or row["limit_s"] >= limit_s)


def _tests_of(by: str, lots: list[list[str]]) -> list[str]:
    """The test files whose word an outcome is: the one that noticed, or all that did not."""
    return sorted({name.partition("::")[0] for name in ([by] if by.startswith("tests/") else chain(*lots))})


def _digest(paths: list[str]) -> str:
    """Of these files' names and bytes; one that is gone has none."""
    found = hashlib.sha256()
    for path in map(ROOT.joinpath, paths):
        found.update(f"{path.relative_to(ROOT)}\0".encode() + (path.read_bytes() if path.exists() else b"gone"))
    return found.hexdigest()[:12]


def settle(folder: str) -> None:
    """A worker of its own, with a room."""
    global ROOM
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends its workers
    ROOM = Room(ROOT, Path(folder) / str(os.getpid()), DATA)


def work(limit_s: float, until: float, asked: tuple[Mutant, list[list[str]]]) -> tuple[Mutant, Outcome | None]:
    """One change, tried in this worker's room; none is begun after the time."""
    mutant, lots = asked
    return mutant, tried(ROOM, mutant, lots, limit_s) if time.monotonic() < until else None


def keep(path: Path, rows: list[dict[str, Any]], asked: argparse.Namespace) -> None:
    """The result so far: what was not noticed by package, then every change."""
    result = {
        "rows": figures(rows, asked.only, asked.count),
        "seed": asked.seed, "count": asked.count, "only": asked.only, "jobs": asked.jobs,
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}", "changes": rows,
    }  # fmt: skip
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(result, indent=1) + "\n")
    partial.replace(path)


def figures(rows: list[dict[str, Any]], only: str, count: int) -> list[dict[str, Any]]:
    """How many of these no test noticed, of all and of each package, as `inv bench --report` takes it."""
    found = []
    for package, goal in {"": 0.15, **({} if only else dict.fromkeys(mutants.PACKAGES, 0.25))}.items():
        tried = [r for r in rows if r["change"].startswith(package)]
        if tried:
            missed, drawn = unnoticed(tried), math.ceil(count / len(mutants.PACKAGES)) if package else count
            found.append({
                "what": f"unnoticed changes of {package or only or 'all packages'}", "value": missed, "unit": "changes",
                "against": f"{len(tried)} tried of {drawn}", "ratio": round(missed / len(tried), 3), "goal": goal,
            })  # fmt: skip
    return found


def unnoticed(rows: list[dict[str, Any]]) -> int:
    """How many of these no test noticed."""
    return sum(r["state"] != "noticed" for r in rows)


def main() -> None:
    """Draw, try, keep, and list what no test noticed."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--only", default="", help="a folder or module: cluster/jobs")
    p.add_argument("--count", type=int, default=COUNT)
    p.add_argument("--seed", type=int, default=SEED)
    p.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for each change")
    p.add_argument("--jobs", type=int, default=2, help="changes tried at once")
    p.add_argument("--minutes", type=float, default=0.0, help="begin no further change after these")
    p.add_argument("--map", action="store_true", help="look again which test runs which line")
    p.add_argument("--work", type=Path, default=ROOT / ".mutation", help="where the map and partial results are kept")
    asked = p.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # rooms are removed
    asked.work.mkdir(exist_ok=True)
    left_out = () if (ROOT / ".torch/.installed").exists() else ("trainer/resnet50_torch",)
    for path in left_out:
        print(f"{path} is left out: its tests need PyTorch, 'make torch' installs it")
    drawn = mutants.draw(ROOT, count=asked.count, seed=asked.seed, only=asked.only, left_out=left_out)
    is_whole = not asked.only and (asked.seed, asked.count) == (SEED, COUNT) and asked.limit >= LIMIT_S
    name = f"mutation-{asked.only.strip('/').replace('/', '-') or 'all'}-{asked.seed}.json"
    path = RESULTS / "mutation.json" if is_whole else asked.work / name
    known = json.loads(path.read_text())["changes"] if path.exists() else []
    reach = Reach(ROOT, asked.work, anew=asked.map)
    warm_up()
    try:
        run(drawn, reach, {r["change"]: r for r in known}, path, asked)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here")
    rows = json.loads(path.read_text())["changes"]
    print(f"{len(rows) - unnoticed(rows)} of {len(rows)} noticed, of {len(drawn)} drawn, in {path}; not:")
    for row in rows:
        if row["state"] != "noticed":
            print(f"  {row['state']:<11} {row['change']}")


if __name__ == "__main__":
    main()
