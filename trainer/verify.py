"""Shards against their manifest: `python -m trainer.verify DATADIR [--decode]`."""

import functools
import hashlib
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from trainer import records
from trainer.commandline import Parser
from trainer.dataset import MANIFEST
from trainer.errors import ConfigError, TrainerError, entry


def read_manifest(folder: Path) -> dict[str, Any]:
    """The folder's manifest.

    Raises:
        ConfigError: there is none, or it is not one.
    """
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
        assert isinstance(manifest["splits"], dict)
    except OSError as e:
        raise ConfigError(
            f"{folder / MANIFEST} cannot be read ({e.strerror}): only shards of python -m "
            "trainer.imagenet can be verified"
        ) from e
    except (ValueError, KeyError, AssertionError) as e:
        raise ConfigError(f"{folder / MANIFEST} is no manifest of python -m trainer.imagenet ({e!r})") from e
    return manifest


def shard_problems(facts: dict[str, Any], folder: Path, decode: bool = False) -> list[str]:
    """What is wrong with one shard, a sentence each; none if it is as its facts say.

    Args:
        facts: its entry in the manifest.
        decode: whether each image is decoded, too.
    """
    path = folder / facts["name"]
    try:
        if not path.exists():
            return [f"{path}: missing"]
        size = path.stat().st_size
        if size != facts["bytes"]:
            return [f"{path}: {size} bytes, the manifest says {facts['bytes']}"]
        problems, count = [], 0
        for count, record in enumerate(records.read_all(path), start=1):
            problem = image_problem(record) if decode else None
            if problem:
                problems.append(f"{path}: record {count} {problem}")
        if count != facts["records"]:
            problems.append(f"{path}: {count} records, the manifest says {facts['records']}")
        if _sha256(path) != facts["sha256"]:
            problems.append(f"{path}: its SHA-256 is not the manifest's")
    except TrainerError as e:
        return [str(e)]
    except OSError as e:
        return [f"{path}: cannot be read: {e.strerror}"]
    return problems


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def image_problem(record: bytes) -> str | None:
    """Why a record's image cannot be trained on: it does not decode, or has another size than the record says."""
    import cv2
    import numpy as np

    try:
        example = records.parse(record)
        encoded = example["image/encoded"][0]
        size = (int(example["image/height"][0]), int(example["image/width"][0]))
    except (ValueError, KeyError, IndexError):
        return "is no example with an image"
    assert isinstance(encoded, bytes)
    pixels = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    if pixels is None:
        return "holds no image that can be decoded"
    return None if pixels.shape[:2] == size else f"says {size[0]} x {size[1]}, the image is {pixels.shape[:2]}"


def verify(folder: Path, *, decode: bool = False, processes: int | None = None) -> list[str]:
    """Every problem of every shard; several shards at a time.

    Raises:
        ConfigError: there is no manifest.
    """
    manifest = read_manifest(folder)
    shards = [shard for split in manifest["splits"].values() for shard in split["shards"]]
    found: list[str] = []
    expected = manifest["written"] + len(manifest["rejected"])
    if manifest["files"] != expected:
        found.append(f"{folder / MANIFEST}: {manifest['files']} files, but {expected} accounted for")
    with ProcessPoolExecutor(processes or len(os.sched_getaffinity(0))) as pool:
        for problems in pool.map(functools.partial(shard_problems, folder=folder, decode=decode), shards):
            found += problems
    return found


@entry
def main(argv: Sequence[str]) -> None:
    """Says what is wrong, or that nothing is."""
    parser = Parser(prog="python -m trainer.verify", description="Checks shards against their manifest.")
    parser.add_argument("data_dir", type=Path, help="folder with manifest.json and the shards")
    parser.add_argument("--decode", action="store_true", help="decode every image, too")
    parser.add_argument("--processes", type=int, help="default: one per core")
    a = parser.parse_args(argv)
    problems = verify(a.data_dir, decode=a.decode, processes=a.processes)
    for problem in problems:
        print(problem)
    manifest = read_manifest(a.data_dir)
    if problems:
        raise TrainerError(f"{len(problems)} problems in {a.data_dir}: copy or prepare these shards again")
    count = sum(len(split["shards"]) for split in manifest["splits"].values())
    print(
        f"{a.data_dir}: {count} shards with {manifest['written']} records are as {MANIFEST} says"
        + (", every image decodes" if a.decode else "")
    )


if __name__ == "__main__":
    sys.exit(main())
