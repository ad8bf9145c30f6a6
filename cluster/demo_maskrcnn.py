"""The detector's demo: drawn shapes, a reduced Mask R-CNN trained on them as a job, and pictures of what it sees."""

import os

from cluster.demo import FOLDER, demo_cluster, do_on_master, keep_folder, train_to_its_end
from cluster.inventory import Cluster
from cluster.jobs.client import Training

SHOWN = 0.7   # score: below it are second guesses at the class of an object that is found already
HOSTS = 2   # on two cores more ranks only share them
RECIPE = (
    "BACKBONE.NORM=GN", "FPN.NORM=GN", "BACKBONE.FREEZE_AT=0", "BACKBONE.RESNET_NUM_BLOCKS=1,1,1,1",
    "BACKBONE.CHANNELS=32", "FPN.NUM_CHANNEL=64", "FPN.FRCNN_FC_HEAD_DIM=256", "MRCNN.HEAD_DIM=64",
    "FRCNN.BATCH_PER_IM=64", "RPN.ANCHOR_SIZES=16,32,64,96,128", "RPN.TRAIN_PER_LEVEL_PRE_NMS_TOPK=400",
    "RPN.TRAIN_PER_LEVEL_NMS_TOPK=200", "RPN.TRAIN_IMAGE_TOPK=300", "RPN.TEST_PER_LEVEL_PRE_NMS_TOPK=200",
    "RPN.TEST_IMAGE_TOPK=200", "PREPROC.TRAIN_SHORT_EDGE_SIZE=128", "PREPROC.TEST_SHORT_EDGE_SIZE=128",
    "PREPROC.MAX_SIZE=192", "TRAIN.BASE_LR=0.16", "TRAIN.WARMUP=100", "TRAIN.WARMUP_INIT_LR=0.01",
    "TRAIN.GRADIENT_CLIP=10", "TRAIN.LR_EPOCH_SCHEDULE=[(6,.1),(7,None)]", "TRAIN.EVAL_PERIOD=2",
    "DATA.NUM_WORKERS=1")


def run(keep_lab: bool = False) -> None:
    """Show it. Raises ClusterError with what did not work."""
    with demo_cluster(keep_lab) as cluster:
        shapes = f"{cluster.shared}/data/shapes"
        do_on_master(cluster, "trainer.coco.sample", "--out", shapes, "--train", "400", "--val", "24", "--size", "128",
                     "--max-objects", "3")
        do_on_master(cluster, "trainer.coco.verify", shapes)
        folder = _train(cluster, shapes)
        images = [f"{shapes}/val2017/{n:012d}.jpg" for n in (1, 2, 3, 4)]
        do_on_master(cluster, "trainer.maskrcnn.predict", "--job-dir", folder, "--out", f"{folder}/pictures", *images,
                     "--config", f"TEST.RESULT_SCORE_THRESH_VIS={SHOWN}")
        kept = keep_folder(cluster, folder)
    print(f"\nDetections on images it has not learned from: {kept}/pictures/*.png (everything is in {FOLDER})")


def _train(cluster: Cluster, shapes: str) -> str:
    """Train as a job and follow it; the job's folder."""
    ranks = sum(h.slots for h in cluster.hosts[:HOSTS])
    threads = max(1, len(os.sched_getaffinity(0)) // ranks)   # each lab host counts all cores as its own
    training = Training(name="demo-maskrcnn", module="trainer.maskrcnn", hosts=cluster.hosts[:HOSTS],
                        arguments=("--threads", str(threads), f"DATA.BASEDIR={shapes}", *RECIPE))
    return train_to_its_end(cluster, training)
