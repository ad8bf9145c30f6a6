"""Damaged archives and development kits: one sentence that names the file, or every file in its place."""

import functools
from pathlib import Path
from typing import Any

import pytest

from tests import fuzzing
from tests.tars import tar_of
from trainer.common.files.errors import ConfigError
from trainer.imagenet.archives import TRAIN, VALIDATION, read_archives
from trainer.imagenet.devkit import META, TRUTH

pytestmark = [pytest.mark.fuzz, pytest.mark.slow]

KIT = "ILSVRC2012_devkit_t12"
META_BYTES = (Path(__file__).parent / "recorded/meta-plain.mat").read_bytes()


@functools.cache
def corpus() -> Any:
    """The files of a small official folder by their paths."""
    inner = {f"n0{n}.tar": tar_of({f"n0{n}_{i}.JPEG": b"x" * 90 * i for i in range(3)}) for n in (2119789, 2100735)}
    long = tar_of({"ILSVRC2012_val_00000001.JPEG": b"x", "d/" * 60 + "ILSVRC2012_val_00000002.JPEG": b"y"})
    return {TRAIN: tar_of(inner), VALIDATION: long, f"{KIT}/{META}": META_BYTES, f"{KIT}/{TRUTH}": b"1\n2\n"}


def one_damaged_folder(rng: Any) -> None:
    """Refused, or all that is found lies within its archive."""
    names = sorted(corpus())
    changed = names[rng.integers(len(names))]
    with fuzzing.folder() as folder:
        for name, data in corpus().items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(fuzzing.damaged(data, rng) if name == changed else data)
        try:
            raw = read_archives(folder)
        except ConfigError as e:
            assert str(folder) in str(e)
            return
        for source in (*raw.train, *raw.validation):
            assert 0 <= source.offset <= source.offset + source.size <= source.path.stat().st_size


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    """The two tars, the kit's table and its list of labels."""
    fuzzing.survives(one_damaged_folder, tmp_path, least=100)
