"""Reports of speed: tf_cnn_benchmarks' lines, the scaling report, stragglers."""

import json
import re
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from trainer import scaling
from trainer.benchmark import BenchmarkConfig, Speed, overall, parse
from trainer.common.files.errors import ConfigError, TrainerError
from trainer.common.ranks.clock import Times
from trainer.common.ranks.metrics import FILE
from trainer.common.ranks.stragglers import mean_values, slow_ranks, straggler_line
from trainer.scaling import ScalingPoint, point, report, text

SMALL = (
    "--image-size",
    32,
    "--batch-size",
    4,
    "--num-batches",
    4,
    "--num-warmup-batches",
    1,
    "--display-every",
    2,
    "--threads",
    1,
)


def test_a_speed_is_the_mean_with_its_standard_error() -> None:
    """Images over all the time, not the mean of the steps' speeds; jitter from the median, which one slow step cannot move."""
    speed = Speed.of([0.5, 0.5, 0.5, 1.0], batch=10)

    assert speed.mean == pytest.approx(40 / 2.5)
    assert speed.uncertainty == pytest.approx(statistics.pstdev([20, 20, 20, 10]) / 2)
    assert speed.jitter == 0
    assert "total images/sec: 30.00 +/- 5.00" in overall([Speed(10, 3, 0), Speed(20, 4, 0)])
    assert "mean images/sec per rank: 15.00 +/- 2.50 over 2 ranks" in overall([Speed(10, 3, 0), Speed(20, 4, 0)])


def test_the_benchmark_mode_prints_what_tf_cnn_benchmarks_does(ranks: Any) -> None:
    """On two ranks with the tutorials' network; the total is the sum over ranks."""
    said = ranks(2, "trainer.benchmark", "--model", "vgg16", *SMALL).stdout
    lines = said.splitlines()

    assert [1, 2, 4] == [
        int(x)
        for x in re.findall(r"^(\d+)\timages/sec: \d+\.\d \+/- \d+\.\d \(jitter = \d+\.\d\)\t\d+\.\d{3}$", said, re.M)
    ]
    assert "8 global, 4 per rank" in said and "Precision:   float32" in said
    mean, total = (
        float(re.search(rf"^{what}: (\d+\.\d+)", said, re.M)[1])
        for what in ("mean images/sec per rank", "total images/sec")
    )
    assert total == pytest.approx(2 * mean, abs=0.02)
    assert 1 == lines.count("Done warm up")


def test_other_networks_of_the_tutorials_train(ranks: Any) -> None:
    """A few steps of each on one tiny batch: every loss is a number, and the first step changes it."""
    said = ranks(1, "tests/trainer/steps_of_networks.py", "alexnet:67", "inception3:75").stdout
    found = json.loads(said.splitlines()[-1])
    assert {"alexnet", "inception3"} == set(found)
    for losses in found.values():
        assert np.isfinite(losses).all() and losses[0] != losses[1]


def test_the_benchmark_mode_takes_our_networks_and_real_shards(python: Any, mini_shards: Any) -> None:
    """In bfloat16."""
    said = python("trainer.benchmark", "--model", "resnet50_v1.5", *SMALL, "--bf16", "--data-dir", mini_shards).stdout

    assert f"Data:        {mini_shards}" in said and "Precision:   bfloat16" in said
    assert re.search(r"^total images/sec: \d+\.\d+ \+/- \d+\.\d+$", said, re.M)


def test_the_benchmark_mode_names_networks_as_tf_cnn_benchmarks_does() -> None:
    """resnet50 is the paper's there, with early strides; v1.5 is what the trainer trains."""
    assert BenchmarkConfig(model="resnet50").strides_first and not BenchmarkConfig(model="resnet50_v1.5").strides_first
    assert (
        "resnet50"
        == BenchmarkConfig(model="resnet50_v1.5").training().model
        == BenchmarkConfig(model="resnet50").training().model
    )


def test_the_benchmark_mode_takes_flags_as_tf_cnn_benchmarks_spells_them() -> None:
    """With underscores, and its word for float16; so does every trainer's command line."""
    config, _ = parse(["--num_batches=7", "--batch_size", "32", "--use_fp16", "--data_dir", "/a_b/c", "--model=vgg16"])

    assert (7, 32, True, Path("/a_b/c")) == (config.num_batches, config.batch_size, config.fp16, config.data_dir)
    assert not parse([])[0].fp16


def test_the_benchmark_mode_refuses_before_it_starts(python: Any) -> None:
    """Unknown networks, both precisions at once."""
    for flags, says in ((("--model", "vgg99"), "vgg16"), (("--fp16", "--bf16"), "not both")):
        done = python("trainer.benchmark", "--check", *flags, check=False)
        assert 2 == done.returncode and says in done.stderr


def job(folder: Any, ranks: Any, speeds: Any) -> Any:
    """A job's metrics of one line per speed."""
    folder.mkdir()
    lines = [
        {"kind": "train", "step": step, "ranks": ranks, "images_per_s": speed} for step, speed in enumerate(speeds)
    ]
    (folder / FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_the_scaling_report_compares_with_the_fewest_ranks(tmp_path: Path, python: Any) -> None:
    """Medians after the warm-up; efficiency per rank; sorted, drawn."""
    folders = [job(tmp_path / "four", 4, [1, 1, 320, 300, 280]), job(tmp_path / "one", 1, [1, 1, 90, 100, 110])]
    points = report([point(folder) for folder in folders])

    assert [(1, 100, 1.0), (4, 300, 0.75)] == [(p.ranks, p.images_per_s, p.efficiency) for p in points]
    assert "75.0%" in text(points).splitlines()[2]
    python("trainer.scaling", *folders, "--out", tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_the_scaling_report_refuses_what_cannot_be_compared(tmp_path: Path) -> None:
    """Two jobs of one size, jobs without lines."""
    folders = [job(tmp_path / name, 2, [1, 1, 5]) for name in "ab"]
    with pytest.raises(ConfigError, match="same number of ranks"):
        report([point(folder) for folder in folders])
    with pytest.raises(TrainerError, match="no line after the warm-up"):
        point(job(tmp_path / "short", 2, [1]))


POINTS = [ScalingPoint(ranks=1, images_per_s=100, low=90, high=115, lines=3),
          ScalingPoint(ranks=4, images_per_s=300, low=280, high=330, lines=5, efficiency=0.75)]  # fmt: skip


def test_the_scaling_report_is_a_table_and_a_picture() -> None:
    """A row per number of ranks; the ideal beside the medians with their quartiles, the share of it at each point."""
    assert [
        " ranks   images/s           quartiles  per rank efficiency",
        "     1      100.0      90.0-    115.0     100.0     100.0%",
        "     4      300.0     280.0-    330.0      75.0      75.0%",
    ] == text(POINTS).splitlines()

    ax = Figure().subplots()
    scaling.draw(ax, POINTS)
    assert {"ideal": [100, 400], "median": [100, 300]} == {
        "ideal" if line.get_label() == "ideal" else "median": list(line.get_ydata())
        for line in ax.get_lines()
        if len(line.get_ydata()) == 2 and line.get_marker() in ("None", "o")
    }
    bars: Any = ax.collections[0]
    assert [[90, 115], [280, 330]] == [[end[1] for end in part] for part in bars.get_segments()]
    assert ["100%", "75%"] == [note.get_text() for note in ax.texts]
    assert ("log", "log", "ranks", "images/s") == (ax.get_xscale(), ax.get_yscale(), ax.get_xlabel(), ax.get_ylabel())
    assert ["1", "4"] == [label.get_text() for label in ax.get_xticklabels()]
    assert ["ideal", "median, quartiles"] == [t.get_text() for t in ax.get_legend().get_texts()]


def row(speed: Any, **axes: Any) -> dict[str, Any]:
    """Of a matrix."""
    return {**axes, "job": "j", "state": "done", "images_per_s": speed}


def test_the_benchmark_mode_has_its_networks_defaults() -> None:
    """Sizes and batches; the run that it makes has the measured steps and those before them."""
    sizes = {
        name: (BenchmarkConfig(model=name).size, BenchmarkConfig(model=name).batch)
        for name in ("resnet18", "vgg16", "alexnet")
    }
    assert {"resnet18": (224, 64), "vgg16": (224, 64), "alexnet": (227, 512)} == sizes
    assert [32, 32, 32] == [BenchmarkConfig(model=f"resnet{n}").batch for n in ("101", "152", "101_v1.5")]
    assert (32, 48) == (BenchmarkConfig(batch_size=32).batch, BenchmarkConfig(image_size=48).size)
    run = BenchmarkConfig(model="vgg16", fp16=True, num_batches=7, data_dir=Path("d")).training()
    assert ("resnet50", 64, 17, "float16", "128.0", 224, False) == (
        *(run.model, run.batch_size, run.num_batches, run.precision, run.loss_scale, run.image_size, run.synthetic),
    )
    assert (0.005, 0.9, 4e-5, True) == (run.lr, run.momentum, run.weight_decay, BenchmarkConfig().training().synthetic)
    assert ["bfloat16", "float32"] == [BenchmarkConfig(bf16=True).precision, BenchmarkConfig().precision]
    assert (100, 10, 10) == (
        BenchmarkConfig().num_batches,
        BenchmarkConfig().num_warmup_batches,
        BenchmarkConfig().display_every,
    )
    for flags in ({"num_batches": 1}, {"num_warmup_batches": 0}, {"display_every": 0}, {"fp16": True, "bf16": True}):
        with pytest.raises(ConfigError):
            BenchmarkConfig(**flags)


def test_a_rank_is_slow_above_a_limit_and_the_cause_is_named() -> None:
    """Its input, where that is more than half of what it needs beyond the others; means are over the ranks."""
    usual = [Times(0.0, 1.0, 0.0)] * 3
    assert ([], [3]) == (slow_ranks([*usual, Times(0.0, 1.3, 0)]), slow_ranks([*usual, Times(0.0, 1.31, 0)]))
    assert straggler_line(3, "b", [*usual, Times(0.4, 1.5, 0)]).endswith(
        "needs 1.900 s of its own per step, the median 1.000 s (compute)"
    )
    assert straggler_line(3, "b", [*usual, Times(0.5, 1.3, 0)]).endswith("(input)")
    assert {"input_s": 0.25, "compute_s": 2.0, "reduce_s": 0.5} == mean_values([Times(0.5, 1, 0), Times(0, 3, 1)])
