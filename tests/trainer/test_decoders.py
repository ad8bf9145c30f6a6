"""A rank's processes that decode: their pixels, what they say of what cannot be read, and that they end with it."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from cluster.inventory import ROOT
from tests.conftest import PATIENCE_S
from trainer.common.data import records
from trainer.common.files.errors import TrainerError
from trainer.resnet50.reader import InputError
from trainer.resnet50_torch import decoding, rng
from trainer.resnet50_torch.decoders import Arena, Decoders, lost_ones_told

RNG = np.random.default_rng(3)


def jpeg(height: int, width: int, mode: str = "RGB") -> bytes:
    """Of smooth noise, which keeps its details when it is packed."""
    small = RNG.integers(0, 256, (height // 8 + 2, width // 8 + 2, 3), np.uint8)
    file = io.BytesIO()
    picture = Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)
    picture.convert(mode).save(file, "JPEG", quality=90)
    return file.getvalue()


def record(encoded: bytes, label: int = 1) -> bytes:
    """As a shard has it."""
    return records.example({"image/class/label": label, "image/encoded": encoded})


@pytest.fixture(scope="module")
def decoders() -> Iterator[Decoders]:
    """Two processes."""
    with Decoders(2) as found:
        yield found


def decoded(decoders: Decoders, arena: Arena, serialized: list[bytes], pixels: list[Any], mirrored: list[bool]) -> Any:
    """Labels and pixels of a batch."""
    under_way = decoders.begin(arena, serialized, pixels, mirrored, side=24, classes=9)
    labels = [label for one in under_way for label in one.result()]
    return labels, arena.pixels(len(labels), 24).copy()


@pytest.mark.parametrize(("height", "width", "mode"), [(60, 80, "RGB"), (300, 240, "RGB"), (75, 31, "L")])
def test_crops_are_those_of_pillow_and_the_plain_decoder(height: int, width: int, mode: str) -> None:
    """Bit by bit; whatever the image before it has left in the same memory."""
    encoded = jpeg(height, width, mode)
    numbers = rng.crop_numbers(np.array([[1, 7]]))[0]
    crop = rng.random_crop(height, width, numbers, 0.1)
    plain = {fast: simplejpeg.decode_jpeg(encoded, "RGB", fastdct=fast, fastupsample=fast) for fast in (True, False)}
    window = plain[True][crop.top : crop.top + crop.height, crop.left : crop.left + crop.width].copy()
    bilinear, extent = Image.Resampling.BILINEAR, Image.Transform.EXTENT
    whole = Image.fromarray(window).transform((24, 24), extent, (0, 0, crop.width, crop.height), bilinear)
    stretched = rng.stretched_view(height, width, 24)
    wanted = {
        "random": np.asarray(whole),
        "centre": np.asarray(
            Image.fromarray(plain[False]).resize((24, 24), bilinear, rng.central_view(height, width, 24))
        ),
        "reference": np.asarray(Image.fromarray(plain[True]).transform((24, 24), extent, stretched, bilinear)),
    }

    decoding.random_crop(jpeg(400, 400), 24, numbers, 0.1)
    assert np.array_equal(wanted["random"], decoding.random_crop(encoded, 24, numbers, 0.1))
    for name, of in decoding.CROPS.items():
        assert np.array_equal(wanted[name], of(encoded, 24)), name


def test_a_batch_comes_back_in_its_order(decoders: Decoders) -> None:
    """From the same memory, for batches that are larger, then smaller, than the one before; some mirrored."""
    arena = Arena()
    for count, side in ((3, 40), (21, 400), (1, 30)):
        images = [jpeg(side + i, side) for i in range(count)]
        numbers = rng.crop_numbers(np.stack([np.full(count, 5), np.arange(count)], 1))
        pixels: list[Any] = [partial(decoding.random_crop, numbers=own, least_area=0.3) for own in numbers]
        mirrored = [i % 3 == 1 for i in range(count)]
        labels, seen = decoded(decoders, arena, [record(x, i % 9 + 1) for i, x in enumerate(images)], pixels, mirrored)
        one_by_one = [crop(image, 24) for crop, image in zip(pixels, images, strict=True)]
        wanted = [x[:, ::-1] if turned else x for x, turned in zip(one_by_one, mirrored, strict=True)]

        assert [i % 9 for i in range(count)] == labels
        assert np.array_equal(np.stack(wanted), seen)


def test_memory_of_a_batch_that_is_gone_is_not_taken_for_the_next(decoders: Decoders) -> None:
    """A new arena may have the number of an old one's file."""
    for shade in range(20):
        file = io.BytesIO()
        Image.fromarray(np.full((24, 24, 3), 12 * shade, np.uint8)).save(file, "JPEG", quality=100)
        arena = Arena()
        _, seen = decoded(decoders, arena, [record(file.getvalue())] * 4, [decoding.central_crop] * 4, [False] * 4)
        assert abs(seen.astype(int) - 12 * shade).max() <= 1
        del arena


@pytest.mark.parametrize(
    ("serialized", "says"),
    [
        (record(b"no JPEG"), "holds no readable JPEG image with a label: python -m trainer.verify --decode names it"),
        (b"no example", "holds no readable JPEG image with a label"),
        (record(jpeg(30, 30), 10), "a label lies outside 1 to 9: give the --classes of the data"),
    ],
)
def test_what_cannot_be_used_is_the_ranks_error(decoders: Decoders, serialized: bytes, says: str) -> None:
    """A sentence, whichever process met it; and the processes go on."""
    good = record(jpeg(30, 30))
    crops = [decoding.central_crop] * 9
    with pytest.raises(InputError, match=says):
        decoded(decoders, Arena(), [*[good] * 8, serialized], crops, [False] * 9)
    assert [0] * 9 == decoded(decoders, Arena(), [good] * 9, crops, [False] * 9)[0]


class Rank:
    """A process that decodes when it is asked to, in a group of its own."""

    def __init__(self) -> None:
        words = [sys.executable, str(Path(__file__).with_name("decoders_of_a_rank.py"))]
        pipe = subprocess.PIPE
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process: Any = subprocess.Popen(
            words, env=environment, text=True, start_new_session=True, stdin=pipe, stdout=pipe, stderr=pipe
        )

    def ask(self) -> tuple[list[int], list[int]]:
        """Labels, and the processes."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        labels, processes = json.loads(self.process.stdout.readline())
        return labels, processes


@pytest.fixture
def rank() -> Iterator[Rank]:
    """One."""
    found = Rank()
    yield found
    with contextlib.suppress(ProcessLookupError):
        os.killpg(found.process.pid, signal.SIGKILL)
    found.process.wait()


def is_there(pid: int) -> bool:
    """And no zombie that nobody has asked after."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def wait_until_gone(pids: list[int]) -> None:
    """All of them."""
    until = time.monotonic() + PATIENCE_S
    while any(map(is_there, pids)):
        assert time.monotonic() < until, f"still there: {[p for p in pids if is_there(p)]}"
        time.sleep(0.02)


def wait_until_idle(pids: list[int]) -> None:
    """All of them wait, each where it waits for its next task."""

    def ran() -> list[int]:
        stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
        return [int(fields[11]) + int(fields[12]) if fields[0] == "S" else -1 for fields in stats]

    until = time.monotonic() + PATIENCE_S
    while -1 in (before := ran()) or (time.sleep(0.2) or ran()) != before:
        assert time.monotonic() < until, "they do not come to rest"


def test_signals_to_all_of_a_rank_are_the_ranks_alone(rank: Rank) -> None:
    """Ctrl-C, a stop and a lost terminal come to every process of its group; what it says to do is done."""
    _, processes = rank.ask()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.killpg(rank.process.pid, number)
        assert ([2] * 8, processes) == rank.ask()
    out, err = rank.process.communicate(timeout=PATIENCE_S)
    assert (0, "", "") == (rank.process.returncode, out, err)
    wait_until_gone(processes)


def test_they_end_with_a_rank_that_is_killed(rank: Rank) -> None:
    """Nothing is left of it."""
    _, processes = rank.ask()
    assert 2 == len(processes) and all(map(is_there, processes))
    rank.process.kill()
    wait_until_gone(processes)


@pytest.mark.parametrize("which", range(3))
def test_one_that_is_killed_is_told_of(which: int) -> None:
    """By the rank, in a sentence; the others end, and the rank does, also where it was the one that waited for a task."""
    crops, good = [decoding.central_crop] * 4, [record(jpeg(30, 30))] * 4
    with Decoders(3) as own:
        decoded(own, Arena(), good, crops, [False] * 4)
        pids = own.pids
        wait_until_idle(pids)
        os.kill(pids[which], signal.SIGKILL)
        with pytest.raises(TrainerError, match="was ended from outside, perhaps for want of memory"), lost_ones_told():
            while True:
                decoded(own, Arena(), good, crops, [False] * 4)
    wait_until_gone(pids)
