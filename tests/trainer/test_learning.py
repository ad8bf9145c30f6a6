"""The trainer learns: a drawn set of ten classes, four ranks, float32 and bfloat16, against one rank."""

import pytest

from trainer import metrics

TOP1 = 45.0   # percent; chance is 10
NOISE = 22.0  # between two runs of these few steps


pytestmark = pytest.mark.long

@pytest.fixture(scope="module")
def drawn(python, tmp_path_factory):
    """1200 and 300 drawn images as shards."""
    folder = tmp_path_factory.mktemp("drawn")
    python("trainer.sample", "--out", folder / "raw", "--train", 1200, "--validation", 300)
    python("trainer.imagenet", "--raw", folder / "raw", "--out", folder / "shards")
    return folder / "shards"


@pytest.fixture(scope="module")
def reached(ranks, drawn, tmp_path_factory):
    """Top-1 in percent after training; each combination is trained once."""
    found = {}

    def top1(count, precision):
        if (count, precision) not in found:
            job = tmp_path_factory.mktemp("job")
            ranks(count, "trainer.resnet50", "--model", "resnet18", "--image-size", 32, "--threads", 1, "--data-dir", drawn, "--job-dir", job,
                  "--batch-size", 32 // count, "--num-epochs", 5, "--lr", 0.05, "--lr-decay-mode", "cosine", "--warmup-epochs", 0.5,
                  "--crop-area", 0.6, "--precision", precision, "--eval")
            found[count, precision] = metrics.read(job)[-1]["top1"]
        return found[count, precision]

    return top1


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_four_ranks_learn_as_one_does(reached, precision):
    """Far above chance, and within noise of one rank in float32."""
    assert reached(4, precision) > TOP1
    assert reached(4, precision) == pytest.approx(reached(1, "float32"), abs=NOISE)
