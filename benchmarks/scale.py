"""What `inv train.estimate` predicts beside what others measured, and its curves: results/scale.json, docs/scale.png.

Nothing is run: the published figures are in cfn/estimate/published.py, each with where it stands.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, from anywhere

from cfn.estimate.goodput import FailureCost, goodput
from cfn.estimate.layers import network
from cfn.estimate.machines import machine
from cfn.estimate.published import FIGURES
from cfn.estimate.step import TrainingSettings
from cfn.estimate.whole import Work, estimate
from rounds import write

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "scale.png"
TYPES = ("g4dn.xlarge", "g5.12xlarge", "g6e.12xlarge", "p4d.24xlarge", "p5.48xlarge")
HOSTS = (1, 2, 4, 8, 16, 32, 64)


def main() -> None:
    """Predict, write results/scale.json, draw."""
    write(
        "scale",
        [
            {
                "what": f"predicted images/s, {f.what}",
                "value": round(f.predicted(), 1),
                "unit": "images/s",
                "against": f"{f.images_per_s:.0f} measured, {f.source}{'; fixes the model' if f.fixes else ''}",
                "ratio": round(f.predicted() / f.images_per_s, 3),
                "goal": None,
                "runs": 1,
            }
            for f in FIGURES
        ],
    )
    _draw()


def _draw() -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (judged, curves, nights) = pyplot.subplots(1, 3, figsize=(15, 4.6))
    for fixes, mark in ((True, "o"), (False, "x")):
        some = [f for f in FIGURES if f.fixes == fixes]
        label = "fixed the constants" if fixes else "looked at afterwards"
        judged.loglog([f.images_per_s for f in some], [f.predicted() for f in some], mark, label=label)
    judged.plot([300, 3e5], [300, 3e5], "-", color="grey", linewidth=0.8)
    judged.set(title="ResNet, predicted against published", xlabel="images/s, published", ylabel="images/s, predicted")
    judged.legend()
    training = TrainingSettings(layers=network("resnet50", 224), batch=256)
    for name in TYPES:
        kind = machine(name)
        rows = [estimate(training, Work(images=1e8), kind, n, None) for n in HOSTS]
        curves.semilogx([n * kind.gpus for n in HOSTS], [100 * r.efficiency for r in rows], "o-", label=name)
    curves.set(
        title="ResNet-50, float16, 256 images a GPU", xlabel="GPUs", ylabel="% of as many single GPUs", ylim=(0, 102)
    )
    curves.legend()
    for spares, seconds in ((0, 30), (1, 30), (1, 600), (1, 3600)):
        label = f"{spares} spare{'s' * (spares != 1)}, a checkpoint every {seconds} s"
        share = [100 * goodput(n, spares, FailureCost(save_every_s=seconds)) for n in HOSTS]
        nights.semilogx(HOSTS, share, "o-", label=label)
    nights.set(title="Useful time, hosts failing as Llama 3's did", xlabel="hosts", ylabel="% of the time")
    nights.legend()
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=90)


if __name__ == "__main__":
    main()
