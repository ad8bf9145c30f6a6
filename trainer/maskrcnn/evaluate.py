"""`python -m trainer.maskrcnn.evaluate --job-dir DIR`: COCO's 24 numbers of a checkpoint, over all ranks."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.coco.annotations import CocoSet, read_set
from trainer.coco.categories import check_order
from trainer.coco.listing import check_files
from trainer.common.checkpoints.checkpoint import write_atomically
from trainer.common.files.commandline import TrainerParser
from trainer.common.files.errors import ConfigError, entry
from trainer.common.files.plural import counted
from trainer.maskrcnn.predict import make_detector, source_options


def table(scores: dict[str, float]) -> str:
    """Format the scores, one kind per column."""
    kinds = [k for k in ("box", "mask") if f"{k}_ap" in scores]
    rows = [name.partition("_")[2] for name in scores if name.startswith("box_")]
    lines = [f"{'':24}" + "".join(f"{k:>8}" for k in kinds)]
    return "\n".join(lines + [f"{r:24}" + "".join(f"{scores[f'{k}_{r}']:8.3f}" for k in kinds) for r in rows])


@entry
def main(argv: Sequence[str]) -> None:
    """Detect on every image of the set once over all ranks. Rank 0 scores, prints and writes."""
    p = TrainerParser(prog="python -m trainer.maskrcnn.evaluate", description=__doc__)
    source_options(p)
    p.add_argument("--out", type=Path, help="write the detections as COCO results JSON")
    p.add_argument("--per-category", action="store_true", help="AP of every category, too")
    p.add_argument("--json", action="store_true", help="print the scores as JSON")
    a = p.parse_args(argv)
    from trainer.common.ranks.horovod_rank import Gather, start

    ranks = start()
    detector = make_detector(a, ranks.threads)
    data_config = detector.config.data
    if not data_config.basedir:
        raise ConfigError("DATA.BASEDIR is not set: give the images' folder, as in --config DATA.BASEDIR=/data/coco")
    basedir = Path(data_config.basedir)
    data: CocoSet = read_set(basedir, data_config.val[0], with_masks=detector.config.mode_mask)
    if len(data.category_ids) != data_config.num_category:
        raise ConfigError(f"{data.file} has {len(data.category_ids)} categories, the model {data_config.num_category}")
    check_order(data, data_config.class_names, "the training")
    check_files(data.pictures, data.file)
    from trainer.maskrcnn.evaluation import merged, own_part
    from trainer.maskrcnn.scoring import score

    entries = merged(Gather(ranks.threads)(own_part(detector, data, ranks.rank, ranks.size)), data)
    if not ranks.is_first:
        return
    scores = score(data, entries, with_masks=detector.config.mode_mask, per_category=a.per_category)
    if a.out:
        write_atomically(a.out, json.dumps(entries) + "\n")
    print(json.dumps(scores, indent=1) if a.json else f"{counted(len(data.pictures), 'image')}\n{table(scores)}")


if __name__ == "__main__":
    sys.exit(main())
