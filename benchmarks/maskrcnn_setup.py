"""What benchmarks of Mask R-CNN train, as settings, and how its ranks are started: R50-FPN-GN, whole and reduced."""

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
