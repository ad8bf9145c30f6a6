"""Verification of shards against their manifest: `python -m trainer.verify DATADIR [--decode]`."""

import functools
import hashlib
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from trainer.common.data import jpeg, records
from trainer.common.data.dataset import MANIFEST, ShardFacts, read_manifest
from trainer.common.files.commandline import TrainerParser
from trainer.common.files.errors import ConfigError, TrainerError, entry
from trainer.common.files.plural import counted
from trainer.common.files.progress_lines import ProgressLines


def shard_problems(facts: ShardFacts, folder: Path, classes: Sequence[str], decode: bool = False) -> list[str]:
    """Return the problems of one shard, a sentence each. Returns [] if it agrees with its facts.

    Args:
        classes: their synsets in the order of the labels, from the manifest.
        decode: decode each image, too.
    """
    path = folder / facts.name
    try:
        if not path.exists():
            return [f"{path}: missing"]
        size = path.stat().st_size
        if size != facts.bytes:
            return [f"{path}: {size} bytes, the manifest says {facts.bytes}"]
        problems, count = [], 0
        for count, record in enumerate(records.read_all(path), start=1):
            problem = image_problem(record, classes) if decode else None
            if problem:
                problems.append(f"{path}: record {count} {problem}")
        if count != facts.records:
            problems.append(f"{path}: {counted(count, 'record')}, the manifest says {facts.records}")
        if _sha256(path) != facts.sha256:
            problems.append(f"{path}: its SHA-256 is not the manifest's")
    except TrainerError as e:
        return [str(e)]
    except OSError as e:
        return [f"{path}: cannot be read: {e.strerror}"]
    return problems


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def image_problem(record: bytes, classes: Sequence[str]) -> str | None:
    """Return why a record is unusable: a damaged image, another size, or a wrong label. Returns None if it is usable.

    Args:
        classes: synsets in the order of the labels; the record's own synset must be its label's.
    """
    try:
        example = records.parse(record)
        encoded = example["image/encoded"][0]
        size = (example["image/height"][0], example["image/width"][0])
        label = example["image/class/label"][0]
    except (ValueError, KeyError, IndexError):
        return "is no example with an image and a label"
    header = jpeg.read_header(encoded) if isinstance(encoded, bytes) else None
    if header is None or not isinstance(encoded, bytes):
        return "holds no JPEG image"
    try:
        jpeg.check(encoded, header)
    except jpeg.Unusable as e:
        return f"holds an image that cannot be used: {e}"
    if (header.height, header.width) != size:
        return f"says {size[1]!r} x {size[0]!r} pixels, its image has {header.width} x {header.height}"
    if not isinstance(label, int) or not 1 <= label <= len(classes):
        return f"has the label {label!r}, but the classes are 1 to {len(classes)}"
    synset = next(iter(example.get("image/class/synset", [])), None)
    if isinstance(synset, bytes) and synset.decode(errors="replace") != classes[label - 1]:
        return f"says {synset.decode(errors='replace')}, but its label {label} is {classes[label - 1]} in {MANIFEST}"
    return None


@dataclass(frozen=True)
class VerifyResult:
    """Result of verifying a folder: its shards, its records and their problems."""

    folder: Path
    shards: int
    records: int  # by the manifest
    problems: tuple[str, ...]


def verify(folder: Path, *, decode: bool = False, processes: int | None = None) -> VerifyResult:
    """Return every problem of every shard. Several shards are read at a time.

    Raises:
        ConfigError: there is no manifest.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        raise ConfigError(f"{folder / MANIFEST} is missing: only shards of python -m trainer.imagenet can be verified")
    found: list[str] = []
    expected = manifest.written + manifest.rejected
    if manifest.files != expected:
        found.append(f"{folder / MANIFEST}: {counted(manifest.files, 'file')}, but {expected} accounted for")
    look = functools.partial(shard_problems, folder=folder, classes=manifest.classes, decode=decode)
    with ProcessPoolExecutor(processes or len(os.sched_getaffinity(0))) as pool:
        progress = ProgressLines(counted(len(manifest.shards), "shard"), sys.stderr)
        for problems in pool.map(look, manifest.shards):
            found += problems
            progress.add()
    return VerifyResult(folder, len(manifest.shards), manifest.written, tuple(found))


@entry
def main(argv: Sequence[str]) -> None:
    """Verify a folder of shards and print the problems, or that there are none."""
    parser = TrainerParser(prog="python -m trainer.verify", description="Checks shards against their manifest.")
    parser.add_argument("data_dir", type=Path, help="folder with manifest.json and the shards")
    parser.add_argument("--decode", action="store_true", help="decode every image, too")
    parser.add_argument("--processes", type=int, help="default: one per core")
    parser.add_argument("--json", action="store_true", help="the answer as JSON")
    a = parser.parse_args(argv)
    if a.processes is not None and a.processes < 1:
        raise ConfigError(f"--processes is {a.processes}, but must be at least 1")
    verdict = verify(a.data_dir, decode=a.decode, processes=a.processes)
    if a.json:
        print(json.dumps(asdict(verdict), indent=2, default=str))
    else:
        for problem in verdict.problems:
            print(problem)
    if verdict.problems:
        count = len(verdict.problems)
        raise TrainerError(f"{counted(count, 'problem')} in {a.data_dir}: copy or prepare these shards again")
    if not a.json:
        print(
            f"{a.data_dir}: {counted(verdict.shards, 'shard')} with {counted(verdict.records, 'record')} are as "
            f"{MANIFEST} says" + (", every image decodes" if a.decode else "")
        )


if __name__ == "__main__":
    sys.exit(main())
