"""`python -m trainer.maskrcnn.predict --job-dir DIR IMAGE ... --out DIR`: detections drawn into PNGs, and as JSON."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from trainer.coco import masks
from trainer.common.checkpoints.checkpoint import write_atomically
from trainer.common.data import pictures
from trainer.common.data.jpeg import Unusable
from trainer.common.files.commandline import TrainerParser
from trainer.common.files.errors import ConfigError, TrainerError, entry
from trainer.common.files.plural import counted
from trainer.maskrcnn.config import Config
from trainer.maskrcnn.detections import Detections
from trainer.maskrcnn.draw import Image, draw_detections
from trainer.maskrcnn.keys import apply_settings


def source_options(p: argparse.ArgumentParser) -> None:
    """Add the options that select the weights."""
    p.add_argument("--job-dir", type=Path, help="a training's folder; its newest valid checkpoint is used")
    p.add_argument("--step", type=int, help="the checkpoint of this step instead of the newest")
    p.add_argument("--load", type=Path, help="weights of tensorpack or Detectron2 instead of a job")
    p.add_argument("--config", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="settings")


def make_detector(a: argparse.Namespace, threads: int = 0) -> Any:
    """Return the detector that the options select. `threads` 0 uses all cores.

    Raises:
        ConfigError: not exactly one of --job-dir and --load.
    """
    from trainer.maskrcnn import checkpoint_loader

    if (a.job_dir is None) == (a.load is None):
        raise ConfigError("give either --job-dir (a training) or --load (an npz)")
    if a.job_dir:
        return checkpoint_loader.detector_of_job(a.job_dir, a.config, step=a.step, threads=threads)[1]
    return checkpoint_loader.detector_of_npz(a.load, apply_settings(Config(), a.config), threads=threads)


def predict(detector: Any, files: Sequence[Path], out: Path) -> int:
    """Write `out/NAME.png` per image and `out/detections.json`. Returns the number of detections.

    Images may have any size and are shown as stored, so boxes are in their pixels.
    """
    targets = _targets(files, out)
    images = {file: _read(file) for file in targets}  # all are read before anything is written
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise ConfigError(f"--out {out} cannot be made a folder: {e.strerror}") from e
    names = detector.config.data.class_names
    listed: list[dict[str, Any]] = []
    for file, image in images.items():
        found = detector.detect(image).above(detector.config.test.result_score_thresh_vis)
        if not cv2.imwrite(str(targets[file]), draw_detections(image, found, names)):
            raise TrainerError(f"{targets[file]} cannot be written: is the disk full?")
        listed.append(
            {
                "file": str(file),
                "height": image.shape[0],
                "width": image.shape[1],
                "detections": as_json(found, image.shape[0], image.shape[1], names),
            }
        )
    write_atomically(out / "detections.json", json.dumps(listed, indent=1) + "\n")
    return sum(len(entry["detections"]) for entry in listed)


def as_json(found: Detections, height: int, width: int, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return class, score, box (x1 y1 x2 y2) and run-length mask of each detection."""
    return [
        {
            "class": names[label - 1] if len(names) >= label else int(label),
            "score": round(float(score), 4),
            "box": [round(float(v), 2) for v in box],
            **({"mask": masks.encode(found.full_mask(i, height, width))} if found.masks is not None else {}),
        }
        for i, (box, score, label) in enumerate(zip(found.boxes, found.scores, found.labels, strict=True))
    ]


def _read(file: Path) -> Image:
    try:
        return np.asarray(pictures.decode(pictures.read(file)), np.uint8)
    except (OSError, Unusable) as e:
        raise ConfigError(f"{file} cannot be read as an image: {getattr(e, 'strerror', None) or e}") from e


def _targets(files: Sequence[Path], out: Path) -> dict[Path, Path]:
    """Return the path to which each picture's result is drawn.

    Raises ConfigError if a result would overwrite another result or one of the given pictures.
    """
    targets = {file: out / f"{file.stem}.png" for file in dict.fromkeys(files)}
    of_target: dict[Path, Path] = {}
    given = {file.resolve() for file in targets}
    for file, target in targets.items():
        if target.resolve() in given:
            raise ConfigError(f"{file} would be drawn over {target}, one of the images: give another folder as --out")
        if target in of_target:
            raise ConfigError(f"{of_target[target]} and {file} would both be drawn to {target}: call predict for each")
        of_target[target] = file
    return targets


@entry
def main(argv: Sequence[str]) -> None:
    """Detect on the images, draw the results and print their count."""
    p = TrainerParser(prog="python -m trainer.maskrcnn.predict", description=__doc__)
    source_options(p)
    p.add_argument("images", nargs="+", type=Path)
    p.add_argument("--out", type=Path, default=Path("predictions"), help="folder for the PNGs and detections.json")
    a = p.parse_args(argv)
    for file in a.images:
        if not file.is_file():
            raise ConfigError(f"{file} does not exist")
    count = predict(make_detector(a), a.images, a.out)
    print(f"{a.out}: {counted(len(a.images), 'picture')} with {counted(count, 'detection')}")


if __name__ == "__main__":
    sys.exit(main())
