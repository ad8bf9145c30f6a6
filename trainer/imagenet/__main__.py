"""Program that converts ImageNet, from its raw folder or its official archives, to TFRecord shards.

Run it with `python -m trainer.imagenet --raw DIR --out DIR`. Under mpirun every rank writes its part of the shards.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from trainer.common.data.dataset import MANIFEST
from trainer.common.files.commandline import TrainerParser
from trainer.common.files.errors import ConfigError, entry, mpi_rank
from trainer.common.files.plural import counted
from trainer.common.files.progress_lines import ProgressLines
from trainer.imagenet import archives
from trainer.imagenet.convert import Options, convert
from trainer.imagenet.image import CHECKS
from trainer.imagenet.raw import Raw, read_raw
from trainer.imagenet.shards import ImageOptions, Shard


def part_of(text: str) -> tuple[int, int]:
    """Parse `2/4` as the second of four parts."""
    try:
        part, parts = (int(word) for word in text.split("/"))
    except ValueError as e:
        raise argparse.ArgumentTypeError(f"{text!r} is not like 2/4") from e
    if not 1 <= part <= parts:
        raise argparse.ArgumentTypeError(f"{text!r} is no part: the first of four is 1/4, the last 4/4")
    return part, parts


def parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    p = TrainerParser(prog="python -m trainer.imagenet", description="Converts ImageNet's files to TFRecord shards.")
    p.add_argument(
        "--raw",
        type=Path,
        required=True,
        help=f"folder with {archives.TRAIN}, {archives.VALIDATION} and the development kit, or with "
        "train/<synset>/*, val/*, synsets.txt, val_synsets.txt",
    )
    p.add_argument("--out", type=Path, required=True, help="folder for the shards and manifest.json")
    p.add_argument("--synsets", type=Path, help="list of synsets, `n01440764 tench` per line (default RAW/synsets.txt)")
    p.add_argument(
        "--val-labels",
        type=Path,
        help="one synset per validation file, or lines of FILE SYNSET (default RAW/val_synsets.txt)",
    )
    p.add_argument("--shorter-side", type=int, default=480, help="pixels to shrink to, 0 keeps sizes (default 480)")
    p.add_argument("--quality", type=int, default=85, help="JPEG quality of shrunk and repaired images (default 85)")
    p.add_argument(
        "--image-check",
        choices=CHECKS,
        default="decode",
        help="how far images are looked at that are copied as they are (default decode)",
    )
    p.add_argument("--train-shards", type=int, help="default 1024, fewer for small sets")
    p.add_argument("--validation-shards", type=int, help="default 128, fewer for small sets")
    p.add_argument("--first-number", type=int, choices=(0, 1), default=0, help="of the shards' names (default 0)")
    p.add_argument(
        "--part",
        type=part_of,
        help="i/n: write only every n-th shard; other hosts write the others to the "
        "same --out (default: by rank under mpirun, else all)",
    )
    p.add_argument("--processes", type=int, help="default: one per core, shared by the ranks of a host")
    p.add_argument("--job-dir", type=Path, help="ignored: what runs this as a job gives it")
    p.add_argument("--check", action="store_true", help="only look whether it could be done")
    p.add_argument("--ranks", type=int, default=1, help="with --check: ignored")
    return p


@entry
def main(argv: Sequence[str]) -> None:
    """Convert the raw data and report the result, or with `--check` only count the files."""
    a = parser().parse_args(argv)
    for name in ("train_shards", "validation_shards", "processes"):
        if getattr(a, name) is not None and getattr(a, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} is {getattr(a, name)}, but must be at least 1")
    if a.shorter_side < 0 or not 1 <= a.quality <= 100:
        raise ConfigError("--shorter-side must not be negative and --quality must be between 1 and 100")
    # Under mpirun other ranks may have finished already. There the job's --check refuses a prepared folder.
    if (a.check or own_part() == (1, 1)) and (a.out / MANIFEST).exists():
        raise ConfigError(f"{a.out / MANIFEST} exists: this folder is already prepared; give another --out")
    began = time.monotonic()
    raw = read(a)
    if a.check:
        print(
            f"{len(raw.train)} training and {counted(len(raw.validation), 'validation file')} of "
            f"{len(raw.synsets)} synsets"
        )
        return
    images = ImageOptions(shorter_side=a.shorter_side, quality=a.quality, check=a.image_check)
    options = Options(
        images=images,
        train_shards=a.train_shards,
        validation_shards=a.validation_shards,
        first_number=a.first_number,
        part=a.part or own_part(),
        processes=a.processes or own_processes(),
    )
    done = convert(raw, a.out, options, ConversionProgress(len(raw.train) + len(raw.validation)))
    if done.found:
        print(f"already written: {counted(done.found, 'shard')}")
    if done.manifest is None:
        print(
            f"part {options.part[0]} of {options.part[1]}: {counted(done.shards, 'shard')} written; the last "
            "part to end writes "
            f"{MANIFEST}",
            flush=True,
        )
        return
    report(done.manifest, a.out, time.monotonic() - began)


def read(a: argparse.Namespace) -> Raw:
    """Read the raw data, from the archives or the files."""
    if archives.are_here(a.raw):
        return archives.read_archives(a.raw, a.synsets, a.val_labels)
    return read_raw(a.raw, a.synsets, a.val_labels)


def own_part() -> tuple[int, int]:
    """Return this rank's part under mpirun, else (1, 1), the whole."""
    return mpi_rank() + 1, int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))


def own_processes() -> int:
    """Return the number of processes for this rank's share of the host's cores."""
    return max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "1")))


def report(manifest: dict[str, object], out: Path, seconds: float) -> None:
    """Print each rejected file with its reason, and the counts of all files."""
    rejected: dict[str, str] = manifest["rejected"]  # type: ignore[assignment]
    repaired: dict[str, str] = manifest["repaired"]  # type: ignore[assignment]
    for name, why in rejected.items():
        print(f"rejected {name}: {why}".encode(errors="backslashreplace").decode())
    print(
        f"{counted(manifest['files'], 'file')}: {manifest['written']} written to {out}, {len(rejected)} rejected, "
        f"{len(repaired)} repaired, in {seconds:.1f} s",
        flush=True,
    )


class ConversionProgress:
    """Progress printer of the conversion."""

    def __init__(self, total: int) -> None:
        self._lines = ProgressLines(counted(total, "file"))

    def __call__(self, shard: Shard) -> None:
        self._lines.add(shard.inputs)


if __name__ == "__main__":
    sys.exit(main())
