"""What one rank does in the tests of several ranks: `python -m tests.trainer_maskrcnn.rank_worker WHAT DATA OUT`."""

import json
import sys
from pathlib import Path

import numpy as np

from tests.trainer_maskrcnn.helpers import NOTHING_DRAWN, REDUCED, fixed_weights
from trainer.ranks import Gather, start

IMAGES = 4


def gradient(data: Path, out: Path) -> None:
    """The averaged gradient of the first four images, spread over the ranks; rank 0 writes it."""
    ranks = start(1)
    import tensorflow as tf

    tf.compat.v1.disable_eager_execution()
    tf.compat.v1.set_random_seed(1)
    from trainer.coco.annotations import read_set
    from trainer.maskrcnn.config import Config
    from trainer.maskrcnn.examples import collate, training_example
    from trainer.maskrcnn.keys import apply_settings
    from trainer.maskrcnn.tower import Callback, FedInput, HorovodSteps, MaskRcnn

    batch = IMAGES // ranks.size
    config = apply_settings(
        Config(), [*NOTHING_DRAWN, "TRAIN.WARMUP=0", "DATA.NUM_CATEGORY=3", f"TRAIN.BATCH_SIZE_PER_GPU={batch}"]
    )
    pictures = [p for p in read_set(data, "train2017").pictures if p.objects][:IMAGES]
    own = pictures[ranks.rank * batch : (ranks.rank + 1) * batch]
    arrays = collate(
        [training_example(p, config, epoch=0) for p in own],
        config,
        weight=1 / batch,
        seeds=np.array([[5, p.id] for p in own], np.int32),
    )
    feed = (*arrays, np.array(0.0, np.float32), np.zeros(3, np.float32))

    class Look(Callback):
        _chief_only = False

        def _before_train(self) -> None:
            found = self.trainer.sess.run(self.trainer.gradients, dict(zip(self.trainer.fed, feed, strict=True)))
            if ranks.is_first:
                np.savez(out, **found)

    def fill(steps: HorovodSteps) -> None:
        """Weights that do not depend on the number of ranks."""
        steps.assign(fixed_weights({n: tuple(v.shape.as_list()) for n, v in steps.variables.items()}))

    model = MaskRcnn(config, ranks.size)
    steps = HorovodSteps(model, ranks, fill)
    source = FedInput(iter([feed]))
    steps.setup_graph(model.get_input_signature(), source, model.build_graph, model.get_optimizer)
    steps.fed = source.get_input_tensors()
    steps.go([Look()], 1)


def evaluation(data: Path, out: Path) -> None:
    """Evaluates the validation images over all ranks; rank 0 writes which images had results, and the scores."""
    ranks = start(1)
    import tensorflow as tf

    tf.compat.v1.disable_eager_execution()
    from trainer.coco.annotations import read_set
    from trainer.maskrcnn.config import Config
    from trainer.maskrcnn.detector import Detector
    from trainer.maskrcnn.evaluation import Evaluation
    from trainer.maskrcnn.keys import apply_settings

    coco = read_set(data, "val2017")
    config = apply_settings(
        Config(),
        [
            *REDUCED,
            f"DATA.NUM_CATEGORY={len(coco.category_ids)}",
            "TEST.RESULT_SCORE_THRESH=0.0",
            "TEST.RESULTS_PER_IM=3",
        ],
    )
    detector = Detector(config, threads=1)
    run = Evaluation(detector, coco, ranks, Gather())
    run.start(detector.weights(), 1)
    scores, entries = run.finish()
    assert len(scores) == 24
    if ranks.is_first:
        out.write_text(json.dumps([[e["image_id"], e["score"]] for e in entries]))


if __name__ == "__main__":
    {"gradient": gradient, "evaluation": evaluation}[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
