"""Objects on real photographs learnt by heart by Mask R-CNN: `python benchmarks/real_objects.py`.

Writes results/real_objects.json and docs/objects.png. Of COCO's small real set (`--coco`) photographs with the fewest
objects are learnt from random weights by the reduced model (maskrcnn_setup.py), on one rank of two threads (or
`--ranks 1 2`: also on two of one); judged are the same photographs, since so few teach nothing of others.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import rounds  # noqa: E402
from benchmarks.maskrcnn_setup import MPIRUN, REDUCED, sizes  # noqa: E402
from trainer import metrics  # noqa: E402

PHOTOGRAPHS, SHORT, LONG, STEPS, DROP, EVERY, TIMEOUT_S = 8, 192, 256, 2400, 1800, 200, 3000
"""Steps are of one image; an evaluation comes after every so many."""
WAYS = {1: "one rank", 2: "two ranks"}
Curve = list[tuple[int, float, float]]


def chosen(coco: Path, out: Path) -> Counter[str]:
    """A folder of the photographs with the fewest objects that are no crowd; how many there are of each category."""
    told = json.loads((coco / "annotations/instances_train2017.json").read_text())
    objects = [a for a in told["annotations"] if not a["iscrowd"]]
    per_image = Counter(a["image_id"] for a in objects)
    kept = {image for image, _ in sorted(per_image.items(), key=lambda item: (item[1], item[0]))[:PHOTOGRAPHS]}
    mine = [a for a in objects if a["image_id"] in kept]
    of = Counter(a["category_id"] for a in mine)
    (out / "annotations").mkdir(parents=True)
    (out / "annotations/instances_train2017.json").write_text(
        json.dumps(
            {
                **told,
                "images": [i for i in told["images"] if i["id"] in kept],
                "annotations": mine,
                "categories": [c for c in told["categories"] if c["id"] in of],
            }
        )
    )
    (out / "train2017").symlink_to((coco / "train2017").resolve())
    names = {c["id"]: c["name"] for c in told["categories"]}
    return Counter({names[category]: count for category, count in of.items()})


def learnt(data: Path, job: Path, ranks: int) -> Curve:
    """(images seen, box AP, mask AP) of each evaluation, on two threads in all."""
    settings = (
        *(*REDUCED, *sizes(SHORT, LONG), f"DATA.BASEDIR={data}", "DATA.VAL=coco_train2017", "DATA.NUM_WORKERS=1"),
        *(
            "TRAIN.BASE_LR=0.16",
            "TRAIN.WARMUP=100",
            "TRAIN.GRADIENT_CLIP=10",
            f"TRAIN.STEPS_PER_EPOCH={EVERY // ranks}",
        ),
        f"TRAIN.LR_SCHEDULE=[{DROP // 8},{STEPS // 8}]",  # of 8 images
    )
    words = [*MPIRUN, "-np", str(ranks), sys.executable, "-m", "trainer.maskrcnn", "--job-dir", str(job)]
    done = subprocess.run(
        [*words, "--threads", str(2 // ranks), *settings],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    if done.returncode:
        raise SystemExit(f"exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
    evaluations = [line for line in metrics.read(job) if line["kind"] == "eval"]
    return [(line["step"] * ranks, line["box_ap"], line["mask_ap"]) for line in evaluations]


def draw(curves: dict[str, Curve], what: str, out: Path) -> None:
    """Both APs over the images seen."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.5), dpi=110)
    for label, curve in curves.items():
        seen, box, mask = zip(*curve, strict=True)
        (line,) = axes.plot(seen, box, marker="o", label=f"{label}, boxes")
        axes.plot(seen, mask, marker="s", linestyle="--", color=line.get_color(), label=f"{label}, masks")
    axes.set_xlabel("images seen")
    axes.set_ylabel("COCO's AP")
    axes.set_ylim(0, 1)
    axes.set_title(f"{what} learnt by heart: reduced R50-FPN-GN, {SHORT} pixels", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(out)


def main() -> None:
    """Trainings, rows and picture."""
    parser = argparse.ArgumentParser(description="Objects on real photographs learnt by heart.")
    parser.add_argument("--coco", type=Path, default=Path("../shared/data/coco-mini"))
    parser.add_argument("--ranks", type=int, nargs="+", choices=WAYS, default=[1])
    a = parser.parse_args()
    curves: dict[str, Curve] = {}
    with tempfile.TemporaryDirectory() as made:
        of = chosen(a.coco.resolve(), Path(made) / "data")
        for ranks in a.ranks:
            label = WAYS[ranks]
            curves[label] = learnt(Path(made) / "data", Path(made) / f"job{ranks}", ranks)
            print(label, json.dumps(curves[label]), flush=True)
    tell(curves, f"{of.total()} objects of {len(of)} kinds on {PHOTOGRAPHS} photographs")


def tell(curves: dict[str, Curve], what: str) -> None:
    """Picture and rows."""
    draw(curves, what, ROOT / "docs/objects.png")
    rows: list[dict[str, Any]] = []
    for label, curve in curves.items():
        seen, *reached = curve[-1]
        for part, value in zip(("box", "mask"), reached, strict=True):
            named = f"{what}, reduced R50-FPN-GN, {SHORT} pixels, {seen} images seen, {label}, {part} AP"
            said = {"what": named, "value": round(value, 3), "unit": "AP", "against": "", "ratio": None, "goal": None}
            rows.append({**said, "runs": 1, "spread": [round(value, 3)] * 2})
    rounds.write("real_objects", rows)


if __name__ == "__main__":
    main()
