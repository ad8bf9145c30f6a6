"""Damaged shards, records and manifests: each is named, or is as it was; nothing else is ever raised."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests import fuzzing
from trainer.common.data import dataset, records
from trainer.common.files.errors import TrainerError
from trainer.verify import image_problem

pytestmark = [pytest.mark.fuzz, pytest.mark.slow]

FEATURES = {"image/encoded": b"\xff\xd8 not much", "image/class/label": 3, "a": [1, 300, -1], "b": [0.5], "c": "text"}


def one_damaged_example(rng: Any) -> None:
    """Parsed, or a ValueError; and a record of it is judged in words."""
    data = fuzzing.damaged(records.example(FEATURES), rng)
    with contextlib.suppress(ValueError):
        records.parse(data)
    assert image_problem(data, classes=["n01"] * 5)


def test_a_damaged_example_is_a_value_error(tmp_path: Path) -> None:
    """Whatever bytes it has."""
    fuzzing.survives(one_damaged_example, tmp_path, least=1000)


def one_damaged_shard(rng: Any) -> None:
    """Named when its records are read, or nothing in it was changed; cut anywhere, it is named by its size."""
    with fuzzing.folder() as folder:
        whole = b"".join(records.frame(rng.bytes(int(n))) for n in rng.integers(0, 300, 4))
        data = whole[: int(rng.integers(len(whole)))] if rng.integers(2) else fuzzing.damaged(whole, rng)
        path = folder / "train-00000-of-00001"
        path.write_bytes(data)
        if len(data) != len(whole):
            with pytest.raises(TrainerError, match=str(path)):
                records.scan([path], sizes={path.name: len(whole)})
        try:
            found = b"".join(map(records.frame, records.read_all(path)))
        except TrainerError as e:
            assert str(path) in str(e)
        else:
            assert found == data  # every byte of it is covered by a checksum


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    """Bits, holes and cuts, those between two records included."""
    fuzzing.survives(one_damaged_shard, tmp_path, least=100)


def one_damaged_manifest(rng: Any) -> None:
    """Read, or a ConfigError."""
    shard: dict[str, Any] = {"name": "train-00000-of-00001", "records": 2, "bytes": 99, "sha256": "ab", "inputs": 2}
    value: dict[str, Any] = {
        "format": 1,
        "files": 2,
        "written": 2,
        "rejected": {},
        "repaired": {},
        "classes": [{"label": 1, "synset": "n01"}],
    }
    value["splits"] = {"train": {"examples": 2, "shards": [shard]}}
    text = json.dumps(value).encode()
    with fuzzing.folder() as folder:
        changed = fuzzing.damaged(text, rng) if rng.integers(2) else fuzzing.other_json(text, rng)
        (folder / dataset.MANIFEST).write_bytes(changed)
        (folder / shard["name"]).write_bytes(b"")
        try:
            manifest = dataset.read_manifest(folder)
            assert all(s.bytes >= 0 and "/" not in s.name for s in manifest.shards)
            dataset.find_split(folder, "train").index(skip_damaged=True)
        except TrainerError as e:
            assert str(folder) in str(e)


def test_a_damaged_manifest_is_named(tmp_path: Path) -> None:
    """Changed bytes, and other values in it."""
    fuzzing.survives(one_damaged_manifest, tmp_path, least=100)
