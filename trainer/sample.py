"""Synthetic image set in ImageNet's raw layout, made by `python -m trainer.sample --out DIR`.

Ten classes that differ in shape, colour and texture. None of the three is enough to classify an image. Two classes
share each shape family, and colours overlap. Size, angle, place, background, light and clutter vary, so a network has
to learn.
"""

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from trainer.common.data.process_pool import process_pool
from trainer.common.files.commandline import TrainerParser
from trainer.common.files.errors import ConfigError, TrainerError, entry
from trainer.common.files.plural import counted
from trainer.common.files.progress_lines import ProgressLines


@dataclass(frozen=True)
class ImageClass:
    """Shape, hue and texture of one class's images."""

    name: str
    shape: str  # one of SHAPES
    hue: float  # middle of the hues, 0 to 180 as OpenCV counts
    texture: str  # one of TEXTURES


KINDS = (
    ImageClass("striped disc", "disc", 10, "stripes"),
    ImageClass("dotted disc", "disc", 100, "dots"),
    ImageClass("plain square", "square", 25, "plain"),
    ImageClass("checked square", "square", 120, "checks"),
    ImageClass("plain triangle", "triangle", 60, "plain"),
    ImageClass("striped triangle", "triangle", 150, "stripes"),
    ImageClass("dotted star", "star", 30, "dots"),
    ImageClass("plain star", "star", 165, "plain"),
    ImageClass("checked ring", "ring", 80, "checks"),
    ImageClass("striped cross", "cross", 45, "stripes"),
)
HUE_SPREAD = 16.0  # deviation of the hue: classes overlap


def synset(number: int) -> str:
    """Return the id of the class with this number, in the form of a WordNet id that WordNet does not use."""
    return f"n9{number:07d}"


def draw(kind: ImageClass, rng: np.random.Generator) -> np.ndarray:
    """Draw one picture of this kind, [H, W, 3] uint8 in OpenCV's channel order, shorter side 72 to 112 pixels."""
    height, width = (int(n) for n in rng.integers(72, 113, 2))
    picture = _background(height, width, rng)
    for _ in range(int(rng.integers(1, 4))):
        _clutter(picture, rng)
    mask = _outline(kind.shape, height, width, rng)
    hue = (kind.hue + rng.normal(0, HUE_SPREAD)) % 180
    inside = _textured(kind.texture, hue, height, width, rng)
    soft = cv2.GaussianBlur(mask, (3, 3), 0)[:, :, None].astype(np.float32) / 255
    picture = picture * (1 - soft) + inside * soft
    picture = picture * rng.uniform(0.6, 1.15) + rng.normal(0, rng.uniform(2, 14), picture.shape)
    return np.clip(picture, 0, 255).astype(np.uint8)


def _colour(hue: float, saturation: float, value: float) -> np.ndarray:
    pixel = np.array([[[hue % 180, saturation, value]]], np.uint8)
    return cv2.cvtColor(pixel, cv2.COLOR_HSV2BGR)[0, 0].astype(np.float32)


def _background(height: int, width: int, rng: np.random.Generator) -> np.ndarray:
    coarse = rng.uniform(30, 220, (4, 4, 3)).astype(np.float32)
    return cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)


def _clutter(picture: np.ndarray, rng: np.random.Generator) -> None:
    height, width = picture.shape[:2]
    start, end = ((int(rng.integers(0, width)), int(rng.integers(0, height))) for _ in range(2))
    cv2.line(picture, start, end, rng.uniform(0, 255, 3).tolist(), int(rng.integers(1, 4)), cv2.LINE_AA)


def _polygon(shape: str) -> np.ndarray:
    """Return the corners about the origin, within the unit circle, [K, 2]."""
    if shape == "cross":
        a, b = 0.32, 0.95
        quarter = np.array([(-a, -b), (a, -b), (a, -a)])
        turns = (np.array([[c, s], [-s, c]]) for c, s in ((1, 0), (0, 1), (-1, 0), (0, -1)))
        return np.concatenate([quarter @ turn for turn in turns])
    count, dent = {"square": (4, 1.0), "triangle": (3, 1.0), "star": (10, 0.45)}[shape]
    angles = np.arange(count) * 2 * np.pi / count
    radii = np.where(np.arange(count) % 2, dent, 1.0)
    return np.stack([np.cos(angles), np.sin(angles)], 1) * radii[:, None]


def _outline(shape: str, height: int, width: int, rng: np.random.Generator) -> np.ndarray:
    """Draw the shape's mask [H, W] uint8, 255 inside."""
    mask = np.zeros((height, width), np.uint8)
    radius = rng.uniform(0.28, 0.46) * min(height, width)
    centre = np.array([width, height]) / 2 + rng.uniform(-0.12, 0.12, 2) * min(height, width)
    place = (int(centre[0]), int(centre[1]))
    if shape in ("disc", "ring"):
        cv2.circle(mask, place, int(radius), 255, -1 if shape == "disc" else max(2, int(radius * 0.42)), cv2.LINE_AA)
        return mask
    angle = rng.uniform(0, 2 * np.pi)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    squeeze = np.array([1.0, rng.uniform(0.75, 1.0)])
    corners = _polygon(shape) * squeeze @ turn.T * radius + centre
    cv2.fillPoly(mask, [np.round(corners).astype(np.int32)], 255, cv2.LINE_AA)
    return mask


def _textured(texture: str, hue: float, height: int, width: int, rng: np.random.Generator) -> np.ndarray:
    """Draw [H, W, 3] float32: the colour, and on it the texture in a darker or lighter one."""
    colour = _colour(hue, rng.uniform(110, 255), rng.uniform(110, 200))
    other = _colour(hue + rng.normal(0, 12), rng.uniform(40, 220), rng.choice((40.0, 245.0)))
    y, x = np.mgrid[:height, :width].astype(np.float32)
    angle, period = rng.uniform(0, np.pi), rng.uniform(7, 13)
    u, v = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
    wave_u, wave_v = np.sin(2 * np.pi * u / period), np.sin(2 * np.pi * v / period)
    on = {
        "plain": np.zeros_like(u, bool),
        "stripes": wave_u > 0,
        "checks": wave_u * wave_v > 0,
        "dots": wave_u + wave_v > 0.9,
    }[texture]
    return np.where(on[:, :, None], other, colour)


@dataclass(frozen=True)
class ImageTask:
    """Image file to draw."""

    path: Path
    kind: int
    seed: tuple[int, int, int]  # the set's, 0 for training or 1 for validation, the image's number


def write(task: ImageTask) -> None:
    """Draw one file."""
    picture = draw(KINDS[task.kind], np.random.default_rng(task.seed))
    _, data = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, 90])
    task.path.write_bytes(data.tobytes())


def tasks(out: Path, train: int, validation: int, seed: int) -> list[ImageTask]:
    """Return every file of the set. The classes alternate."""
    count = len(KINDS)
    names = [synset(kind) for kind in range(count)]
    training = [
        ImageTask(out / "train" / name / f"{name}_{i // count}.JPEG", i % count, (seed, 0, i))
        for i, name in zip(range(train), itertools.cycle(names), strict=False)
    ]
    judging = [
        ImageTask(out / "val" / f"sample_val_{i + 1:08d}.JPEG", i % count, (seed, 1, i)) for i in range(validation)
    ]
    return training + judging


def write_set(out: Path, train: int, validation: int, seed: int, processes: int | None = None) -> None:
    """Draw the whole set. Equal seeds give equal files.

    Raises:
        ConfigError: there is already something at `out`, or a number is too small.
        TrainerError: the folder cannot be written.
    """
    check(out, train, validation, seed)
    try:
        _write_files(out, train, validation, seed, processes)
    except OSError as e:
        raise TrainerError(f"{out} cannot be written ({e}): remove what is there and start again") from e


def check(out: Path, train: int, validation: int, seed: int) -> None:
    """Check that `write_set` could run. Raises the same ConfigErrors and changes nothing."""
    if train < len(KINDS) or validation < len(KINDS):
        raise ConfigError(f"--train and --validation must be at least {len(KINDS)}, one per class")
    if seed < 0:
        raise ConfigError(f"--seed is {seed}, but must not be negative")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is not empty: give another --out")


def _write_files(out: Path, train: int, validation: int, seed: int, processes: int | None) -> None:
    for number in range(len(KINDS)):
        (out / "train" / synset(number)).mkdir(parents=True, exist_ok=True)
    (out / "val").mkdir(exist_ok=True)
    todo = tasks(out, train, validation, seed)
    progress = ProgressLines(counted(len(todo), "image"))
    with process_pool(processes) as pool:
        for _ in pool.map(write, todo, chunksize=64):
            progress.add()
    (out / "synsets.txt").write_text("".join(f"{synset(i)} {kind.name}\n" for i, kind in enumerate(KINDS)))
    (out / "val_synsets.txt").write_text("".join(f"{synset(t.kind)}\n" for t in todo[train:]))


@entry
def main(argv: Sequence[str]) -> None:
    """Draw an image set and print its folder, or with `--check` only check that it could be drawn."""
    parser = TrainerParser(prog="python -m trainer.sample", description="Draws a small image set.")
    parser.add_argument("--out", type=Path, required=True, help="new folder for the files")
    parser.add_argument("--train", type=int, default=4000, help="training images (default 4000)")
    parser.add_argument("--validation", type=int, default=1000, help="validation images (default 1000)")
    parser.add_argument("--seed", type=int, default=1, help="of the drawing (default 1)")
    parser.add_argument("--check", action="store_true", help="only look whether it could be done")
    a = parser.parse_args(argv)
    if a.check:
        check(a.out, a.train, a.validation, a.seed)
        print(
            f"{a.out} would get {a.train} training and {counted(a.validation, 'validation image')} of "
            f"{len(KINDS)} classes"
        )
        return
    print(f"drawing {counted(a.train + a.validation, 'image')} into {a.out}", flush=True)
    write_set(a.out, a.train, a.validation, a.seed)
    print(f"{a.train} training and {counted(a.validation, 'validation image')} of {len(KINDS)} classes in {a.out}")


if __name__ == "__main__":
    sys.exit(main())
