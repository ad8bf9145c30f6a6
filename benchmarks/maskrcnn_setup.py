"""What benchmarks of Mask R-CNN train, as settings and photographs, and how its ranks are started.

R50-FPN-GN, whole and reduced.
"""

import json
from collections import Counter
from pathlib import Path

FULL = ("BACKBONE.NORM=GN", "FPN.NORM=GN", "BACKBONE.FREEZE_AT=0")
REDUCED = (
    *FULL,
    "BACKBONE.RESNET_NUM_BLOCKS=1,1,1,1",
    "FPN.NUM_CHANNEL=64",
    "FPN.FRCNN_FC_HEAD_DIM=256",
    "MRCNN.HEAD_DIM=64",
    "FRCNN.BATCH_PER_IM=64",
    "RPN.ANCHOR_SIZES=16,32,64,96,128",
    "RPN.TRAIN_PER_LEVEL_PRE_NMS_TOPK=400",
    "RPN.TRAIN_PER_LEVEL_NMS_TOPK=200",
    "RPN.TRAIN_IMAGE_TOPK=300",
    "RPN.TEST_PER_LEVEL_PRE_NMS_TOPK=200",
    "RPN.TEST_IMAGE_TOPK=200",
)
PHOTOGRAPHS = 8  # that are learnt by heart
MPIRUN = (  # as a job here has it: HOROVOD_CYCLE_TIME is that of cluster/launch/profiles.py without GPUs
    "mpirun",
    "-x",
    "HOROVOD_CYCLE_TIME=5",
    "--allow-run-as-root",
    "--oversubscribe",
    "--bind-to",
    "none",
    "--mca",
    "btl_vader_single_copy_mechanism",
    "none",
    "--mca",
    "mpi_yield_when_idle",
    "1",
)


def sizes(short: int, longest: int) -> tuple[str, ...]:
    """Settings of the image size."""
    return (
        f"PREPROC.TRAIN_SHORT_EDGE_SIZE={short}",
        f"PREPROC.TEST_SHORT_EDGE_SIZE={short}",
        f"PREPROC.MAX_SIZE={longest}",
    )


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
