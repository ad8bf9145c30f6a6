"""What one rank does in the tests of several ranks: `python -m tests.trainer_maskrcnn.rank_worker WHAT DATA OUT`."""

import json
import sys
from pathlib import Path

import numpy as np

from tests.trainer_maskrcnn.helpers import NOTHING_DRAWN, REDUCED, fixed_weights
from trainer.common.ranks.horovod_rank import Gather, start

IMAGES = 2


def gradient(data: Path, out: Path, parts: int = 1) -> None:
    """The averaged gradient of the first two images, spread over the ranks and their micro-steps; rank 0 writes it."""
    ranks = start(1)
    import tensorflow as tf

    tf.compat.v1.disable_eager_execution()
    tf.compat.v1.set_random_seed(1)
    from trainer.coco.annotations import read_set
    from trainer.maskrcnn.config import Config
    from trainer.maskrcnn.examples import collate, training_example
    from trainer.maskrcnn.keys import apply_settings
    from trainer.maskrcnn.tensorpack_trainer import Callback, Fed, FedInput, HorovodSteps, MaskRcnn, StepMeans

    batch = IMAGES // ranks.size // parts
    config = apply_settings(
        Config(), [*NOTHING_DRAWN, "TRAIN.WARMUP=0", "DATA.NUM_CATEGORY=3", f"TRAIN.BATCH_SIZE_PER_GPU={batch}"]
    )
    pictures = [p for p in read_set(data, "train2017").pictures if p.objects][:IMAGES]

    def feed(part: int) -> Fed:
        first = (ranks.rank * parts + part) * batch
        own = pictures[first : first + batch]
        arrays = collate(
            [training_example(p, config, epoch=0) for p in own],
            config,
            weight=1 / batch,
            seeds=np.array([[5, p.id] for p in own], np.int32),
        )
        return (*arrays, np.array(0.0, np.float32), np.zeros(len(StepMeans.REQUESTS), np.float32))

    feeds = [feed(part) for part in range(parts)]

    class Look(Callback):
        _chief_only = False

        def _before_train(self) -> None:
            trainer, fed = self.trainer, [dict(zip(self.trainer.fed, feed, strict=True)) for feed in feeds]
            for part in range(parts - 1):
                trainer.sess.run(trainer.keep_more if part else trainer.keep_first, fed[part])
            found = trainer.sess.run(trainer.gradients, fed[-1])
            if ranks.is_first:
                np.savez(out, **found)

    def fill(steps: HorovodSteps) -> None:
        """Weights that do not depend on the number of ranks."""
        steps.assign(fixed_weights({n: tuple(v.shape.as_list()) for n, v in steps.variables.items()}))

    model = MaskRcnn(config, ranks.size)
    steps = HorovodSteps(model, ranks, fill, parts=parts)
    source = FedInput(iter(feeds))
    steps.setup_graph(model.get_input_signature(), source, model.build_graph, model.get_optimizer)
    steps.fed = source.get_input_tensors()
    steps.go([Look()], 1)


def evaluation(data: Path, out: Path) -> None:
    """Evaluates the validation images of each set in a folder over all ranks; rank 0 writes which images had results."""
    ranks = start(1)
    import tensorflow as tf

    tf.compat.v1.disable_eager_execution()
    from trainer.coco.annotations import read_set
    from trainer.maskrcnn.config import Config
    from trainer.maskrcnn.detector import Detector
    from trainer.maskrcnn.evaluation import Evaluation
    from trainer.maskrcnn.keys import apply_settings

    sets = {folder.name: read_set(folder, "val2017") for folder in sorted(data.iterdir())}
    (categories,) = {len(coco.category_ids) for coco in sets.values()}
    settings = [f"DATA.NUM_CATEGORY={categories}", "TEST.RESULT_SCORE_THRESH=0.0", "TEST.RESULTS_PER_IM=3"]
    detector = Detector(apply_settings(Config(), [*REDUCED, *settings]), threads=1)
    gather, found = Gather(ranks.threads), {}
    for name, coco in sets.items():
        run = Evaluation(detector, coco, ranks, gather)
        run.start(detector.weights(), 1)
        scores, entries = run.finish()
        assert len(scores) == 24
        found[name] = [[e["image_id"], e["score"]] for e in entries]
    if ranks.is_first:
        out.write_text(json.dumps(found))


if __name__ == "__main__":
    {"gradient": gradient, "evaluation": evaluation}[sys.argv[1]](
        Path(sys.argv[2]), Path(sys.argv[3]), *map(int, sys.argv[4:])
    )
