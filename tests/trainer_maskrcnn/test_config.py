"""Settings, schedule and plan; none of it loads TensorFlow."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import PATIENCE_S
from trainer.checkpoint import Folder
from trainer.errors import ConfigError, TrainerError
from trainer.facts import Facts
from trainer.maskrcnn import keys
from trainer.maskrcnn.__main__ import main
from trainer.maskrcnn.config import Config
from trainer.maskrcnn.keys import apply_settings
from trainer.maskrcnn.overlays import OVERLAYS, check_ranks
from trainer.maskrcnn.plan import Plan, continued, make_plan, make_schedule, rates, reference_steps, summary, text
from trainer.maskrcnn.resume import CONFIG_FILE, Position, check_job_dir
from trainer.order import Place

DOCUMENT = Path(__file__).parents[2] / "docs/maskrcnn.md"
STARTED_FROM_NOTHING = ("BACKBONE.NORM=GN", "BACKBONE.FREEZE_AT=0")
REFERENCE_KEYS = """
MODE_MASK=True MODE_FPN=True TRAINER=horovod DATA.BASEDIR=/data DATA.TRAIN=('coco_train2017',)
DATA.VAL=('coco_val2017',)
DATA.NUM_CATEGORY=80 DATA.CLASS_NAMES=[] DATA.ABSOLUTE_COORD=True DATA.FILTER_EMPTY_ANNOTATIONS=True
DATA.NUM_WORKERS=10
BACKBONE.WEIGHTS=w.npz BACKBONE.RESNET_NUM_BLOCKS=[3,4,6,3] BACKBONE.RESNET_NUM_BLOCK=[3,4,23,3]
BACKBONE.FREEZE_AFFINE=False BACKBONE.NORM=SyncBN BACKBONE.FREEZE_AT=2 BACKBONE.TF_PAD_MODE=False
BACKBONE.STRIDE_1X1=False TRAIN.NUM_GPUS=None TRAIN.WEIGHT_DECAY=1e-4 TRAIN.BASE_LR=1e-2 TRAIN.WARMUP=1000
TRAIN.WARMUP_INIT_LR=1e-5 TRAIN.STEPS_PER_EPOCH=500 TRAIN.STARTING_EPOCH=1 TRAIN.LR_SCHEDULE=1x TRAIN.EVAL_PERIOD=50
TRAIN.CHECKPOINT_PERIOD=20 PREPROC.TRAIN_SHORT_EDGE_SIZE=[800,800] PREPROC.TEST_SHORT_EDGE_SIZE=800
PREPROC.MAX_SIZE=1333 PREPROC.PIXEL_MEAN=[123.675,116.28,103.53] PREPROC.PIXEL_STD=[58.395,57.12,57.375]
RPN.ANCHOR_STRIDE=16 RPN.ANCHOR_SIZES=(32,64,128,256,512) RPN.ANCHOR_RATIOS=(0.5,1.,2.) RPN.POSITIVE_ANCHOR_THRESH=0.7
RPN.NEGATIVE_ANCHOR_THRESH=0.3 RPN.FG_RATIO=0.5 RPN.BATCH_PER_IM=256 RPN.MIN_SIZE=0 RPN.PROPOSAL_NMS_THRESH=0.7
RPN.CROWD_OVERLAP_THRESH=9.99 RPN.HEAD_DIM=1024 RPN.TRAIN_PRE_NMS_TOPK=12000 RPN.TRAIN_POST_NMS_TOPK=2000
RPN.TEST_PRE_NMS_TOPK=6000 RPN.TEST_POST_NMS_TOPK=1000 RPN.TRAIN_PER_LEVEL_NMS_TOPK=2000
RPN.TEST_PER_LEVEL_NMS_TOPK=1000 FRCNN.BATCH_PER_IM=512 FRCNN.BBOX_REG_WEIGHTS=[10.,10.,5.,5.] FRCNN.FG_THRESH=0.5
FRCNN.FG_RATIO=0.25 FPN.ANCHOR_STRIDES=(4,8,16,32,64) FPN.PROPOSAL_MODE=Level FPN.NUM_CHANNEL=256 FPN.NORM=GN
FPN.FRCNN_HEAD_FUNC=fastrcnn_4conv1fc_gn_head FPN.FRCNN_CONV_HEAD_DIM=256 FPN.FRCNN_FC_HEAD_DIM=1024
FPN.MRCNN_HEAD_FUNC=maskrcnn_up4conv_gn_head FPN.CASCADE=True MRCNN.HEAD_DIM=256 MRCNN.ACCURATE_PASTE=True
CASCADE.IOUS=[0.5,0.6,0.7] CASCADE.BBOX_REG_WEIGHTS=[[10.,10.,5.,5.],[20.,20.,10.,10.],[30.,30.,15.,15.]]
TEST.FRCNN_NMS_THRESH=0.5 TEST.RESULT_SCORE_THRESH=0.05 TEST.RESULT_SCORE_THRESH_VIS=0.5 TEST.RESULTS_PER_IM=100
TRAIN.BATCH_SIZE_PER_GPU=4 TRAIN.LR_EPOCH_SCHEDULE=[(8,.1),(10,.01),(12,None)] TRAIN.WARMUP_STEPS=1000
TRAIN.GRADIENT_CLIP=0.36 TRAIN.SEED=1234 TEST.BOX_TARGET=0.377 TEST.MASK_TARGET=0.339 BACKBONE.NCHW=False FPN.NCHW=False
RPN.NCHW=False MRCNN.NCHW=False PREPROC.PREDEFINED_PADDING=True RPN.UNQUANTIZED_ANCHOR=True TEST.BATCH_SIZE_PER_GPU=1
"""


def test_all_keys_of_the_references_are_accepted() -> None:
    """Every documented key of both reference versions, with the values their scripts use."""
    config = apply_settings(Config(), REFERENCE_KEYS.split())

    assert config.backbone.resnet_num_blocks == (3, 4, 23, 3)
    assert config.train.lr_epoch_schedule == ((8, 0.1), (10, 0.01), (12, None))
    assert config.rpn.train_image_topk == 2000


def test_a_dumped_configuration_loads_to_the_same() -> None:
    config = apply_settings(Config(), REFERENCE_KEYS.split())
    assert keys.load(json.loads(json.dumps(keys.dump(config)))) == config


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("TRAIN.BASELR=1", "did you mean TRAIN.BASE_LR?"),
        ("BASE_LR=1", "did you mean TRAIN.BASE_LR?"),
        ("train.warmpu=5", "did you mean TRAIN.WARMUP"),
        ("TRAIN.BASE_LR", "write KEY=VALUE"),
        ("TRAIN.BASE_LR=fast", "expected a number"),
        ("TRAIN.BASE_LR=-1", "give a number above 0"),
        ("TRAIN.WARMUP=1.5", "expected a whole number"),
        ("FPN.CASCADE=1", "expected True or False"),
        ("FPN.PROPOSAL_MODE=Joint", "only Level is possible"),
        ("BACKBONE.NCHW=True", "NHWC"),
        ("BACKBONE.NORM=BN", "give one of FreezeBN, SyncBN, GN, None"),
        ("TRAIN.LR_SCHEDULE=fast", "give 1x, 2x"),
        ("TRAIN.LR_SCHEDULE=[3,2,1]", "rise"),
        ("TRAIN.LR_EPOCH_SCHEDULE=[(8,.1),(12,.01)]", "must end in (last epoch, None)"),
        ("TRAIN.LR_SCHEDULE=[0,1]", "must be above 0 and rise"),
        ("TRAIN.LR_EPOCH_SCHEDULE=[(8,None),(12,None)]", "must end in (last epoch, None), and only there"),
        ("TRAIN.LR_EPOCH_SCHEDULE=[(12,.1),(8,None)]", "they must be above 0 and rise"),
        ("TRAIN.MOMENTUM=1.0", "give 0 <= momentum < 1"),
        ("TRAIN.CHECKPOINT_SECONDS=-2", "give seconds, 0 (none by time) or -1 (by cost)"),
        ("TRAIN.WEIGHT_DECAY=-1", "give 0 or more"),
        ("PREPROC.MAX_SIZE=500", "smaller than the short edge"),
        ("PREPROC.TRAIN_SHORT_EDGE_SIZE=[800,600]", "give one size, or smallest and largest"),
        ("PREPROC.PIXEL_MEAN=[1.0,2.0]", "need three numbers each"),
        ("PREPROC.PIXEL_STD=[1.0,2.0]", "need three numbers each"),
        ("PREPROC.PIXEL_STD=[1.0,0.0,1.0]", "the latter above 0"),
        ("PREPROC.PADDING_SHAPES=[(800,1001)]", "both multiples of 32"),
        ("BACKBONE.RESNET_NUM_BLOCKS=3,4,6", "give four numbers"),
        ("BACKBONE.CHANNELS=20", "give a multiple of 8"),
        ("RPN.ANCHOR_SIZES=32,64", "give five sizes"),
        ("RPN.ANCHOR_RATIOS=[0.0]", "must be above 0"),
        ("RPN.FG_RATIO=1.1", "RPN.FG_RATIO is 1.1"),
        ("FRCNN.BATCH_PER_IM=1", "leaves no foreground"),
        ("FRCNN.BBOX_REG_WEIGHTS=[10.0,10.0,5.0]", "give four numbers above 0"),
        ("CASCADE.IOUS=[0.5,0.6]", "need three stages each"),
        ("MODE_MASK=False TEST.MASK_TARGET=0.3", "TEST.MASK_TARGET needs MODE_MASK=True"),
        ("TRAIN.PRECISION=int8", "give one of float32, bfloat16, float16"),
        ("TRAIN.LOSS_SCALE=0", "TRAIN.LOSS_SCALE is '0': give a number above 0, or dynamic"),
        ("OVERLAY=8x4,12x4", "no overlay is called 12x4: there are 8x4, 16x4"),
        ("OVERLAY=13rings", "OVERLAY=13rings is not needed: NCCL counts its channels itself"),
        ("RPN.NEGATIVE_ANCHOR_THRESH=0.8", "an anchor would be both"),
        ("__import__('os').system('true')=1", "no setting is called"),
    ],
)
def test_wrong_settings_are_refused_with_what_to_write(setting: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        apply_settings(Config(), setting.split())
    assert said in str(error.value)


FRACTIONS = """
RPN.NPZ_ANCHOR_CENTER RPN.ANCHOR_CENTER RPN.POSITIVE_ANCHOR_THRESH RPN.NEGATIVE_ANCHOR_THRESH RPN.FG_RATIO
RPN.PROPOSAL_NMS_THRESH FRCNN.FG_THRESH FRCNN.FG_RATIO CASCADE.IOUS TEST.FRCNN_NMS_THRESH TEST.RESULT_SCORE_THRESH
TEST.RESULT_SCORE_THRESH_VIS TEST.BOX_TARGET TEST.MASK_TARGET
"""
ABOVE_ZERO = """
DATA.NUM_WORKERS TRAIN.BATCH_SIZE_PER_GPU TRAIN.BASE_LR TRAIN.CHECKPOINT_PERIOD TRAIN.CHECKPOINTS_KEPT TRAIN.LOG_PERIOD
TRAIN.LARC_ETA PREPROC.TEST_SHORT_EDGE_SIZE RPN.BATCH_PER_IM RPN.HEAD_DIM RPN.TRAIN_PER_LEVEL_PRE_NMS_TOPK
RPN.TRAIN_PER_LEVEL_NMS_TOPK RPN.TRAIN_IMAGE_TOPK RPN.TEST_PER_LEVEL_PRE_NMS_TOPK RPN.TEST_PER_LEVEL_NMS_TOPK
RPN.TEST_IMAGE_TOPK FRCNN.BATCH_PER_IM FPN.NUM_CHANNEL FPN.FRCNN_CONV_HEAD_DIM FPN.FRCNN_FC_HEAD_DIM MRCNN.HEAD_DIM
TEST.RESULTS_PER_IM
"""
FROM_ZERO = """
TRAIN.WEIGHT_DECAY TRAIN.WARMUP TRAIN.WARMUP_INIT_LR TRAIN.MAX_STEPS TRAIN.STEPS_PER_EPOCH TRAIN.EVAL_PERIOD
TRAIN.GRADIENT_CLIP TRAIN.SEED
"""


STAGES, ONES = "CASCADE.BBOX_REG_WEIGHTS", [1.0] * 4


def refusal(*settings: str) -> str:
    """What is said of settings that are refused."""
    with pytest.raises(ConfigError) as error:
        apply_settings(Config(), settings)
    return str(error.value)


@pytest.mark.parametrize("key", FRACTIONS.split())
def test_a_share_is_a_number_from_0_to_1(key: str) -> None:
    """Both ends are one where nothing else forbids them; what lies outside is refused by its name."""

    def told(share: float) -> str:
        return f"{key}={(share,) * 3 if key == 'CASCADE.IOUS' else share}"

    also = {"RPN.NEGATIVE_ANCHOR_THRESH": "RPN.POSITIVE_ANCHOR_THRESH=1", "RPN.POSITIVE_ANCHOR_THRESH": None}
    with_it = also.get(key, "TRAIN.SEED=1") or "RPN.NEGATIVE_ANCHOR_THRESH=0"
    for share in (1.0, 0.0) if key != "FRCNN.FG_RATIO" else (1.0,):
        apply_settings(Config(), [told(share), with_it])
    for share in (-0.01, 1.01):
        assert f"{key} is {share}: give a number from 0 to 1" == refusal(told(share))


@pytest.mark.parametrize("key", ABOVE_ZERO.split())
def test_what_counts_is_above_zero(key: str) -> None:
    """One is enough, where the foreground is not less than one; none is refused by the key's name."""
    apply_settings(Config(), [f"{key}=1", "FRCNN.FG_RATIO=1.0"])
    assert refusal(f"{key}=0") in {f"{key} is {zero}: give a number above 0" for zero in (0, 0.0)}


@pytest.mark.parametrize("key", FROM_ZERO.split())
def test_what_may_be_nothing_is_never_less(key: str) -> None:
    """Zero is taken, and less than that refused by the key's name."""
    apply_settings(Config(), [f"{key}=0"])
    assert refusal(f"{key}=-1") in {f"{key} is {less}: give 0 or more" for less in (-1, -1.0)}


@pytest.mark.parametrize(
    ("taken", "refused"),
    [
        ("BACKBONE.FREEZE_AT=0", "BACKBONE.FREEZE_AT=3"),
        ("BACKBONE.RESNET_NUM_BLOCKS=1,1,1,1", "BACKBONE.RESNET_NUM_BLOCKS=1,0,1,1"),
        ("BACKBONE.RESNET_NUM_BLOCKS=3,4,23,3", "BACKBONE.RESNET_NUM_BLOCKS=3,4,6,3,3"),
        ("BACKBONE.CHANNELS=8", "BACKBONE.CHANNELS=0"),
        ("BACKBONE.CHANNELS=72", "BACKBONE.CHANNELS=12"),
        ("BACKBONE.FREEZE_AFFINE=True", "BACKBONE.FREEZE_AFFINE=True BACKBONE.NORM=GN"),
        ("FPN.NORM=GN", "FPN.NORM=SyncBN"),
        ("FPN.FRCNN_HEAD_FUNC=fastrcnn_4conv1fc_head", "FPN.FRCNN_HEAD_FUNC=maskrcnn_up4conv_head"),
        ("FPN.MRCNN_HEAD_FUNC=maskrcnn_up4conv_gn_head", "FPN.MRCNN_HEAD_FUNC=fastrcnn_2fc_head"),
        ("FPN.GN_HEAD_ORDER=relu-norm", "FPN.GN_HEAD_ORDER=norm"),
        ("RPN.ANCHOR_SIZES=1,2,4,8,16", "RPN.ANCHOR_SIZES=0,2,4,8,16"),
        ("RPN.ANCHOR_RATIOS=0.5", "RPN.ANCHOR_RATIOS=()"),
        ("RPN.NEGATIVE_ANCHOR_THRESH=0.7", "RPN.NEGATIVE_ANCHOR_THRESH=0.71"),
        ("FRCNN.BOX_LOSS=l1", "FRCNN.BOX_LOSS=l2"),
        ("FRCNN.BATCH_PER_IM=4", "FRCNN.BATCH_PER_IM=3"),
        ("FRCNN.BBOX_REG_WEIGHTS=[1.0,1.0,1.0,1.0]", "FRCNN.BBOX_REG_WEIGHTS=[1.0,1.0,0.0,1.0]"),
        ("CASCADE.IOUS=[0.5,0.5,0.5]", "CASCADE.IOUS=[0.5,0.6,0.7,0.8]"),
        (f"{STAGES}={[ONES] * 3}", f"{STAGES}={[ONES] * 2}"),
        (f"{STAGES}={[ONES] * 3}", f"{STAGES}={[ONES, ONES[:3], ONES]}"),
        (f"{STAGES}={[ONES] * 3}", f"{STAGES}={[ONES, [*ONES[:3], 0.0], ONES]}"),
        ("DATA.NUM_CATEGORY=1", "DATA.NUM_CATEGORY=0"),
        ("DATA.NUM_CATEGORY=-1", "DATA.NUM_CATEGORY=-2"),
        ("DATA.TRAIN=a,b", "DATA.TRAIN=()"),
        ("DATA.CLASS_NAMES=a,b DATA.NUM_CATEGORY=2", "DATA.CLASS_NAMES=a,b DATA.NUM_CATEGORY=3"),
        ("DATA.CLASS_NAMES=a,b", "DATA.CLASS_NAMES=a,b DATA.NUM_CATEGORY=1"),
        ("PREPROC.TRAIN_SHORT_EDGE_SIZE=1", "PREPROC.TRAIN_SHORT_EDGE_SIZE=0"),
        ("PREPROC.TRAIN_SHORT_EDGE_SIZE=640,800", "PREPROC.TRAIN_SHORT_EDGE_SIZE=640,700,800"),
        ("PREPROC.MAX_SIZE=800", "PREPROC.MAX_SIZE=799"),
        ("PREPROC.TRAIN_SHORT_EDGE_SIZE=1333", "PREPROC.TRAIN_SHORT_EDGE_SIZE=1334 PREPROC.MAX_SIZE=1333"),
        ("PREPROC.TEST_SHORT_EDGE_SIZE=1333", "PREPROC.TEST_SHORT_EDGE_SIZE=1334 PREPROC.MAX_SIZE=1333"),
        ("PREPROC.PIXEL_STD=[0.5,0.5,0.5]", "PREPROC.PIXEL_STD=[0.5,-0.5,0.5]"),
        ("PREPROC.PIXEL_MEAN=[0.0,0.0,0.0]", "PREPROC.PIXEL_MEAN=[0.0,0.0,0.0,0.0]"),
        ("PREPROC.PADDING_SHAPES=[(32,32)]", "PREPROC.PADDING_SHAPES=[(0,32)]"),
        ("PREPROC.PADDING_SHAPES=[(800,1344),(1344,800)]", "PREPROC.PADDING_SHAPES=[(800,1344),(1343,800)]"),
        ("TRAIN.PRECISION=float16", "TRAIN.PRECISION=float64"),
        ("TRAIN.LOSS_SCALE=1024", "TRAIN.LOSS_SCALE=-1"),
        ("TRAIN.CHECKPOINT_SECONDS=0", "TRAIN.CHECKPOINT_SECONDS=-0.5"),
        ("TRAIN.MOMENTUM=0", "TRAIN.MOMENTUM=-0.1"),
        ("TRAIN.LR_SCHEDULE=10x", "TRAIN.LR_SCHEDULE=0x"),
        ("TRAIN.LR_SCHEDULE=[1]", "TRAIN.LR_SCHEDULE=()"),
        ("TRAIN.LR_SCHEDULE=[1,2]", "TRAIN.LR_SCHEDULE=[1,1,2]"),
        ("TRAIN.LR_SCHEDULE=3x", "TRAIN.LR_SCHEDULE=3y"),
        ("TRAIN.LR_EPOCH_SCHEDULE=[(1,None)]", "TRAIN.LR_EPOCH_SCHEDULE=[(0,None)]"),
        ("TRAIN.LR_EPOCH_SCHEDULE=[(1,0.1),(2,None)]", "TRAIN.LR_EPOCH_SCHEDULE=[(2,0.1),(2,None)]"),
        ("MODE_MASK=False TEST.BOX_TARGET=0.3", "MODE_MASK=False TEST.MASK_TARGET=0.3"),
        ("MODE_FPN=False", "MODE_FPN=False FPN.CASCADE=True"),
        ("MODE_FPN=True FPN.CASCADE=True", "MODE_FPN=False REFERENCE=tensorpack"),
        ("OVERLAY=run1,run10", "OVERLAY=run0"),
        ("OVERLAY=64x4", "OVERLAY=run11"),
    ],
)
def test_what_is_just_possible_is_taken_and_what_just_is_not_is_refused(taken: str, refused: str) -> None:
    """The refusal names the key of the last setting, or of the one that it contradicts."""
    words = (text.replace(", ", ",").split() for text in (taken, refused))
    apply_settings(Config(), next(words))
    wrong = next(words)
    said = refusal(*wrong)
    names = [word.partition("=")[0].rpartition(".")[2] for word in wrong]
    assert any(name in said for name in names) or "no overlay is called" in said, said


def test_every_default_is_the_documented_one() -> None:
    """docs/maskrcnn.md has a value in each key's row, which read as a setting changes nothing."""
    rows = re.findall(r"^\| `([A-Z0-9_.]+)` \| ([^|]*) \|", DOCUMENT.read_text(), re.MULTILINE)
    told = {key: value.strip("`") for key, value in rows if key in keys.known_keys()}
    assert set(keys.known_keys()) == set(told)
    types = keys.known_keys()
    documented = {key: keys.parse_value(key, value.strip("'"), types[key]) for key, value in told.items()}
    assert keys.dump(Config()) == documented


def test_what_an_overlay_sets_is_what_is_documented_of_it() -> None:
    """Each alone over what the fork starts from: the settings that differ, and nothing else."""
    started = keys.dump(apply_settings(Config(), ["OVERLAY=predefined_padding"]))
    default = keys.dump(Config())
    assert {
        "OVERLAY": ("predefined_padding",),
        "TRAIN.WARMUP_INIT_LR": 0.00333333,
        "TRAIN.LR_EPOCH_SCHEDULE": ((8, 0.1), (10, 0.01), (12, None)),
        "TRAIN.EVAL_PERIOD": 0,
    } == {key: value for key, value in started.items() if value != default[key]}
    assert started["PREPROC.PREDEFINED_PADDING"] and 0.01 == started["TRAIN.BASE_LR"]
    four: dict[str, object] = {"TRAIN.BATCH_SIZE_PER_GPU": 4}
    clipped: dict[str, object] = {"TRAIN.GRADIENT_CLIP": 1.5}
    overlays: dict[str, dict[str, object]] = {
        "8x4": four,
        "16x4": four,
        "32x4": four | clipped,
        "64x4": four | clipped,
        "24epoch": {"TRAIN.LR_EPOCH_SCHEDULE": ((16, 0.1), (20, 0.01), (24, None))},
        "bbrw": {"FRCNN.BBOX_REG_WEIGHTS": (20.0, 20.0, 10.0, 10.0)},
        "larc": {"TRAIN.LARC": True},
        "syncbn": {"BACKBONE.NORM": "SyncBN"},
        "run1": {"TRAIN.SEED": 1235},
        "run10": {"TRAIN.SEED": 1244},
    }
    for name, changes in overlays.items():
        laid = keys.dump(apply_settings(Config(), [f"OVERLAY={name}"]))
        assert {"OVERLAY": (name,), **changes} == {key: value for key, value in laid.items() if value != started[key]}


def test_overlays_belong_to_their_number_of_ranks() -> None:
    """Those that name one; an overlay without a number of ranks fits any."""
    check_ranks(("8x4", "24epoch", "bbrw", "run3"), 8)
    check_ranks(("24epoch", "larc"), 5)
    with pytest.raises(ConfigError, match="OVERLAY=16x4 is for 16 ranks, here are 8"):
        check_ranks(("24epoch", "8x4", "16x4"), 8)


@pytest.mark.parametrize("key", [k for k, settled in keys.SETTLED.items() if "NCHW" in k or len(settled.allowed) == 1])
def test_a_settled_key_takes_its_one_value_and_says_why_no_other(key: str) -> None:
    """The documented value changes nothing; another is refused with the reason."""
    (row,) = re.findall(rf"^\| `{key}` \| (.*?) \| (.*) \|$", DOCUMENT.read_text(), re.MULTILINE)
    value, why = row
    assert Config() == apply_settings(Config(), [f"{key}={value}"])
    assert f"{key}=7: only {value} is possible, {why}" == refusal(f"{key}=7")


def test_where_the_heads_read_c4_its_level_has_the_proposals_of_five() -> None:
    """MODE_FPN=False raises both limits, unless they are given; anchors of all sizes lie on the one map."""
    c4 = apply_settings(Config(), ["MODE_FPN=False"])
    assert (12000, 6000) == (c4.rpn.train_per_level_pre_nms_topk, c4.rpn.test_per_level_pre_nms_topk)
    given = apply_settings(Config(), ["MODE_FPN=False", "RPN.TEST_PRE_NMS_TOPK=70"])
    assert (12000, 70) == (given.rpn.train_per_level_pre_nms_topk, given.rpn.test_per_level_pre_nms_topk)
    assert ((16, (32, 64, 128, 256, 512)),) == c4.anchor_places
    assert ((4, (32,)), (8, (64,)), (16, (128,)), (32, (256,)), (64, (512,))) == Config().anchor_places
    assert 81 == apply_settings(Config(), ["DATA.NUM_CATEGORY=80"]).num_classes
    assert 2 == apply_settings(Config(), ["DATA.NUM_CATEGORY=1"]).num_classes


def test_gn_heads_are_told_from_their_names() -> None:
    """Either head's is enough."""
    assert not Config().fpn.has_gn_heads
    assert apply_settings(Config(), ["FPN.MRCNN_HEAD_FUNC=maskrcnn_up4conv_gn_head"]).fpn.has_gn_heads
    assert apply_settings(Config(), ["FPN.FRCNN_HEAD_FUNC=fastrcnn_4conv1fc_gn_head"]).fpn.has_gn_heads


def test_the_longest_side_is_rounded_up_where_tensorpack_rounds_it() -> None:
    """To a multiple of 32, one that is stays; what a predicted side may be follows."""
    for most, longest in ((1333, 1344), (1344, 1344), (1345, 1376)):
        plain, rounded = (
            apply_settings(Config(), [f"PREPROC.MAX_SIZE={most}", f"PREPROC.ROUND_MAX_SIZE={way}"]).preproc
            for way in (False, True)
        )
        assert (most, longest) == (plain.longest_side, rounded.longest_side)
        assert (1333 / 16, longest / 16) == (plain.growth, rounded.growth)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("TRAIN.BASE_LR=1", 1.0),
        ("BACKBONE.WEIGHTS=5", "5"),
        ("DATA.TRAIN=one", ("one",)),
        ("DATA.TRAIN=one, two,", ("one", "two")),
        ("RPN.ANCHOR_RATIOS=2", (2,)),
        ("TRAIN.LR_SCHEDULE=10,20", (10, 20)),
        ("PREPROC.PADDING_SHAPES=[[32,64],(64,32)]", ((32, 64), (64, 32))),
        ("PREPROC.PADDING_SHAPES=[32,64]", ((32, 64),)),
        ("TRAIN.LR_EPOCH_SCHEDULE=[(1,None)]", ((1, None),)),
    ],
)
def test_a_value_is_read_as_its_key_wants_it(setting: str, value: object) -> None:
    """A whole number for a number, one word for a list of words, lists for tuples."""
    key, _, text = setting.partition("=")
    found = keys.parse_value(key, text, keys.known_keys()[key])
    assert value == found and type(value) is type(found)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("TRAIN.BASE_LR=True", "TRAIN.BASE_LR=True: expected a number"),
        ("TRAIN.WARMUP=True", "TRAIN.WARMUP=True: expected a whole number"),
        ("PREPROC.PADDING_SHAPES=[(32,64,96)]", "expected values as ((int, int), ...)"),
        ("PREPROC.PADDING_SHAPES=[32,64,96]", "expected values as ((int, int), ...)"),
        ("RPN.ANCHOR_SIZES=32,x", "RPN.ANCHOR_SIZES=32,x: expected values as (int, ...)"),
        ("MODE_MASK=5", "MODE_MASK=5: expected True or False"),
        ("=5", "'=5' is not a setting: write KEY=VALUE, as in TRAIN.BASE_LR=0.01"),
        ("TRAINER=simple", "TRAINER=simple: only horovod or replicated is possible, every run goes through Horovod"),
        ("QQQQQQ=5", "no setting is called QQQQQQ; docs/maskrcnn.md lists them all"),
        ("RPN.HED_DIM=5", "no setting is called RPN.HED_DIM: did you mean RPN.HEAD_DIM?"),
        ("HEAD_DIM=5", "no setting is called HEAD_DIM: did you mean RPN.HEAD_DIM?"),
    ],
)
def test_a_value_that_its_key_cannot_have_is_refused_with_what_is_expected(setting: str, said: str) -> None:
    """Neither True for a number nor a list of another length; a wrong name gets the nearest right one."""
    assert said in refusal(setting)


def test_overlays_lie_over_each_other_and_under_what_is_given() -> None:
    """Over the values that the fork starts from; a job's file of settings loads to the same."""
    config = apply_settings(
        Config(), ["TRAIN.WEIGHT_DECAY=2e-4", "OVERLAY=32x4,24epoch,larc,run3", "TRAIN.GRADIENT_CLIP=2"]
    )
    train = config.train
    assert (4, 2.0, 0.00333333, True, 1237, 2e-4) == (
        train.batch_size_per_gpu,
        train.gradient_clip,
        train.warmup_init_lr,
        train.larc,
        train.seed,
        train.weight_decay,
    )
    assert ((16, 0.1), (20, 0.01), (24, None)) == train.lr_epoch_schedule
    assert keys.load(json.loads(json.dumps(keys.dump(config)))) == config
    both = apply_settings(Config(), ["OVERLAY=syncbn,bbrw"])
    assert ("SyncBN", (20.0, 20.0, 10.0, 10.0), ((8, 0.1), (10, 0.01), (12, None))) == (
        both.backbone.norm,
        both.frcnn.bbox_reg_weights,
        both.train.lr_epoch_schedule,
    )
    page = (Path(__file__).parents[2] / "docs/maskrcnn.md").read_text()
    assert [] == [name for name in OVERLAYS if f"`{name}`" not in page and not name.startswith("run")]


def test_an_overlay_for_other_ranks_is_refused(shapes: Path) -> None:
    """What it says of batch, rate and clipping belongs to that many."""
    words = [f"DATA.BASEDIR={shapes}", "OVERLAY=8x4", "BACKBONE.NORM=GN", "BACKBONE.FREEZE_AT=0", "TRAIN.WARMUP=1"]
    config = apply_settings(Config(), words)
    with pytest.raises(ConfigError, match="OVERLAY=8x4 is for 8 ranks, here are 2"):
        make_plan(config, ranks=2, job_dir=None, load=None)
    plan = make_plan(config, ranks=8, job_dir=None, load=None)
    assert (32, 12) == (plan.images_per_step, plan.schedule.steps)  # every pass is one step here


def test_the_published_schedules() -> None:
    """1x, 2x and 3x of the reference, for 8 images per step."""
    assert reference_steps("1x") == (120_000, 160_000, 180_000)
    assert reference_steps("2x") == (240_000, 320_000, 360_000)
    assert reference_steps("3x") == (420_000, 500_000, 540_000)


@pytest.mark.parametrize(
    ("ranks", "batch", "lr", "drops", "total"),
    [
        (8, 1, 0.01, (120_000, 160_000), 180_000),
        (8, 4, 0.04, (30_000, 40_000), 45_000),
        (1, 1, 0.00125, (960_000, 1_280_000), 1_440_000),
        (5, 3, 0.01875, (64_000, 85_334), 96_000),
        (64, 4, 0.32, (3_750, 5_000), 5_625),
    ],
)
def test_steps_and_rate_follow_the_images_per_step(
    ranks: int, batch: int, lr: float, drops: tuple[int, int], total: int
) -> None:
    """Any number of ranks: the same images seen, the rate in proportion."""
    config = apply_settings(Config(), [f"TRAIN.BATCH_SIZE_PER_GPU={batch}", "TRAIN.STEPS_PER_EPOCH=100"])
    schedule = make_schedule(config, ranks=ranks, num_images=117_266)

    assert [step for step, _ in rates(schedule)] == [0, *drops]
    assert [r for _, r in rates(schedule)] == pytest.approx([lr, lr / 10, lr / 100])
    assert schedule.steps == total


def test_warm_up_is_linear_from_its_first_rate_to_the_full_one() -> None:
    schedule = make_schedule(apply_settings(Config(), ["TRAIN.STEPS_PER_EPOCH=100"]), ranks=8, num_images=8)
    assert [schedule(s) for s in (0, 500, 1000, 119_999, 120_000)] == pytest.approx(
        [1e-5, (1e-5 + 1e-2) / 2, 1e-2, 1e-2, 1e-3]
    )


@pytest.mark.parametrize("key", ["EVAL_PERIOD", "CHECKPOINT_PERIOD"])
def test_a_period_that_never_comes_is_refused(key: str) -> None:
    """The reference's scripts set periods of 0 or beyond the end; nothing was ever saved or evaluated."""
    config = apply_settings(Config(), ["TRAIN.LR_EPOCH_SCHEDULE=[(12,None)]", "TRAIN.WARMUP=1", f"TRAIN.{key}=13"])
    with pytest.raises(ConfigError) as error:
        make_schedule(config, ranks=2, num_images=100)
    assert f"TRAIN.{key}=13 would never happen" in str(error.value)
    assert "give at most 12" in str(error.value)


def test_a_warm_up_longer_than_the_run_is_refused() -> None:
    config = apply_settings(Config(), ["TRAIN.LR_EPOCH_SCHEDULE=[(2,None)]"])
    with pytest.raises(ConfigError, match="does not fit in a run of 100"):
        make_schedule(config, ranks=2, num_images=100)


def test_check_says_the_run_without_tensorflow(shapes: Path) -> None:
    """The check is what the launcher runs before mpirun: fast, and it must not need the runtime."""
    code = (
        "import sys\nfrom trainer.maskrcnn.__main__ import main\ncode = main(sys.argv[1:])\n"
        "assert 'tensorflow' not in sys.modules\nsys.exit(code)"
    )
    words = [
        "--check",
        "--ranks",
        "3",
        "--json",
        f"DATA.BASEDIR={shapes}",
        "BACKBONE.NORM=GN",
        "BACKBONE.FREEZE_AT=0",
        "TRAIN.LR_EPOCH_SCHEDULE=[(4,None)]",
        "TRAIN.WARMUP=2",
    ]
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=Path(__file__).parents[2],
        text=True,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["images"] == 18  # every tenth of the 20 is empty
    assert (said["total_steps"], said["steps_per_epoch"]) == (24, 6)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "BACKBONE.NORM=FreezeBN learns nothing from random weights"),
        (["BACKBONE.NORM=GN"], "would freeze random weights"),
        (["BACKBONE.NORM=GN", "BACKBONE.FREEZE_AT=0", "DATA.TRAIN=nothere"], "instances_nothere.json"),
        (["BACKBONE.NORM=GN", "BACKBONE.FREEZE_AT=0", "DATA.NUM_CATEGORY=80"], "has 3 categories"),
        (["BACKBONE.WEIGHTS=/nowhere.npz"], "/nowhere.npz does not exist"),
        (["--nosuch"], "unrecognized arguments: --nosuch"),
    ],
)
def test_check_refuses_with_one_line_and_code_2(
    shapes: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(["--check", f"DATA.BASEDIR={shapes}", *words]) == 2
    out = capsys.readouterr()
    assert said in out.err
    assert out.err.count("\n") == 1
    assert out.out == ""


def begun(shapes: Path, ranks: int) -> Plan:
    """Forty epochs of 18 images."""
    words = [
        *STARTED_FROM_NOTHING,
        f"DATA.BASEDIR={shapes}",
        "TRAIN.LR_EPOCH_SCHEDULE=[(20,.1),(40,None)]",
        "TRAIN.WARMUP=9",
    ]
    return make_plan(apply_settings(Config(), words), ranks=ranks, job_dir=None, load=None)


def position(plan: Plan, step: int) -> Position:
    """Where a checkpoint of this step says that the run is."""
    place = plan.place(step)
    return Position(step, plan.images(step), place.epoch, place.group, plan.ranks, plan.origin_ranks)


def test_fewer_ranks_keep_the_images_per_step_where_they_can_share_them(shapes: Path) -> None:
    """Two of four: two micro-steps each; steps, rates and periods are those of the whole run."""
    whole = begun(shapes, 4)
    rest = continued(begun(shapes, 2), position(whole, 90))

    assert (2, whole.images_per_step, whole.steps) == (rest.parts, rest.images_per_step, rest.steps)
    assert "2 ranks instead of 4: 2 micro-steps each keep the global batch of 4" == rest.change
    assert [whole.rate(s) for s in (3, 99, 100, 101)] == [
        rest.rate(s) if s > 90 else whole.rate(s) for s in (3, 99, 100, 101)
    ]
    assert [s for s in range(91, 120) if whole.is_due(2, s)] == [s for s in range(91, 120) if rest.is_due(2, s)]
    back = continued(whole, position(rest, 120))
    assert ("4 ranks again, as at the beginning: 4 images per step", 1, 120) == (
        back.change,
        back.parts,
        back.origin_step(120),
    )


def test_where_images_cannot_be_shared_the_rate_is_rescaled(shapes: Path) -> None:
    """Three of four: three quarters of the rate at the same epoch, and the run's end is that of the epochs."""
    whole = begun(shapes, 4)
    rest = continued(begun(shapes, 3), position(whole, 50))

    assert "3 ranks instead of 4: learning rate x 0.75, for 3 images per step instead of 4" == rest.change
    assert 0.75 * whole.rate(60) == pytest.approx(rest.rate(62))
    assert (whole.images(whole.steps), rest.place(rest.steps).epoch) == (rest.images(rest.steps), 40)
    assert [0.75 * whole.rate(s) for s in (99, 100)] == pytest.approx([rest.rate(s) for s in (50 + 59, 50 + 60)])
    assert Position(160, 320) == Position.of(Facts(step=160, time="", sha256="", bytes=0, more={"images_seen": 320}))
    assert Place(16) == continued(begun(shapes, 4), Position(160, 320)).first
    with pytest.raises(
        TrainerError, match="does not tell where to go on \\(images_seen is missing\\): it is of another"
    ):
        Position.of(Facts(step=160, time="", sha256="", bytes=0, more={"images": 320}))


@pytest.mark.parametrize("content", ["", "{", "[]", "[" * 100_000, "\x00\xff"])
def test_settings_that_cannot_be_read_are_one_line(
    shapes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    """A job's file of settings that was cut off or overwritten."""
    (tmp_path / CONFIG_FILE).write_text(content)
    words = [*STARTED_FROM_NOTHING, "TRAIN.LR_EPOCH_SCHEDULE=[(4,None)]", "TRAIN.WARMUP=2"]
    assert 2 == main(["--check", "--job-dir", str(tmp_path), f"DATA.BASEDIR={shapes}", *words])
    said = capsys.readouterr().err
    assert f"{tmp_path / CONFIG_FILE} " in said and 1 == said.count("\n")
    assert "give another --job-dir" in said


def test_a_job_folder_with_other_settings_is_refused_and_untouched(shapes: Path, tmp_path: Path) -> None:
    """The reference deleted an existing log folder; here it is continued or refused."""
    config = apply_settings(Config(), [f"DATA.BASEDIR={shapes}", "TRAIN.BASE_LR=0.02"])
    (tmp_path / CONFIG_FILE).write_text(json.dumps(keys.plain(config)))

    check_job_dir(tmp_path, replace(config, test=replace(config.test, results_per_im=7)))
    with pytest.raises(ConfigError, match=r"a run with TRAIN.BASE_LR=0.02, not 0.5"):
        check_job_dir(tmp_path, replace(config, train=replace(config.train, base_lr=0.5)))
    assert [p.name for p in tmp_path.iterdir()] == [CONFIG_FILE]
    words = [*STARTED_FROM_NOTHING, f"DATA.BASEDIR={shapes}", "DATA.NUM_CATEGORY=3", "TRAIN.BASE_LR=0.5"]
    with pytest.raises(ConfigError, match="holds a run with"):
        make_plan(apply_settings(Config(), words), ranks=1, job_dir=tmp_path, load=None)


def test_every_key_is_documented() -> None:
    """docs/maskrcnn.md lists each key with its default, each other name and each settled key."""
    page = (Path(__file__).parents[2] / "docs/maskrcnn.md").read_text()
    missing = [k for k in [*keys.known_keys(), *keys.ALIASES, *keys.SETTLED] if f"| `{k}` |" not in page]
    assert missing == []


def planned(shapes: Path, *words: str, ranks: int = 3, job_dir: Path | None = None) -> Plan:
    """A run on the drawn set's 18 images with objects, of four epochs."""
    schedule = [*STARTED_FROM_NOTHING, f"DATA.BASEDIR={shapes}", "TRAIN.LR_EPOCH_SCHEDULE=[(3,.1),(4,None)]"]
    config = apply_settings(Config(), [*schedule, "TRAIN.WARMUP=1", *words])
    return make_plan(config, ranks=ranks, job_dir=job_dir, load=None)


def test_a_run_is_told_in_seven_lines(shapes: Path, tmp_path: Path) -> None:
    """Images, what is left out of them, ranks, steps, rates, evaluations and checkpoints, with and without a job's folder."""
    lines = text(planned(shapes, "TRAIN.EVAL_PERIOD=2", job_dir=tmp_path)).splitlines()
    assert [
        "images           18 to learn from, 10 to evaluate on, 3 categories",
        "left out         train2017: 2 images without an object (DATA.FILTER_EMPTY_ANNOTATIONS)",
        "ranks            3 x 1 image = 3 per step",
        "steps            24, 4.0 passes",
        "learning rate    0.00375 from step 0, 0.000375 from step 18; warm-up from 3.75e-06 over 1 step",
        "evaluation       every 12 steps",
        "checkpoint       every 30 s or more, every 6 steps and at the end",
    ] == lines
    by_time = {"0": "every 12 steps and at the end", "90": "every 90 s, every 12 steps and at the end"}
    for seconds, told in by_time.items():
        words = ("TRAIN.CHECKPOINT_PERIOD=2", f"TRAIN.CHECKPOINT_SECONDS={seconds}")
        assert f"checkpoint       {told}" == text(planned(shapes, *words, job_dir=tmp_path)).splitlines()[-1]
    for at_end, told in ((True, "at the end"), (False, "none")):
        lines = text(planned(shapes, "TRAIN.EVAL_PERIOD=0", f"TRAIN.EVAL_AT_END={at_end}")).splitlines()
        assert [f"evaluation       {told}", "checkpoint       none: no --job-dir"] == lines[-2:]


def test_micro_steps_are_told_of(shapes: Path) -> None:
    """Where this attempt's ranks compute several batches for what one computed before."""
    plan = replace(planned(shapes, "TRAIN.BATCH_SIZE_PER_GPU=2", ranks=1), origin_ranks=3)
    assert "ranks            1 x 6 images = 6 per step, in 3 micro-steps" in text(plan).splitlines()
    assert (3, 3, 9, 1.0, 6) == (plan.parts, plan.width, plan.groups, plan.scale, plan.images_per_step)
    assert (1, 2, 2 / 3) == ((alone := replace(plan, ranks=2)).parts, alone.width, alone.scale)


def test_a_run_is_told_to_programs(shapes: Path) -> None:
    """The same numbers, and every setting."""
    told = summary(planned(shapes, "TRAIN.STEPS_PER_EPOCH=7"))
    assert {"TRAIN.STEPS_PER_EPOCH": 7, "DATA.NUM_CATEGORY": 3}.items() <= told.pop("config").items()
    assert {
        "ranks": 3,
        "images": 18,
        "left_out": ["train2017: 2 images without an object (DATA.FILTER_EMPTY_ANNOTATIONS)"],
        "images_per_step": 3,
        "total_steps": 24,
        "steps_per_epoch": 7,
        "drops": [(0, pytest.approx(0.00375)), (18, pytest.approx(0.000375))],
        "warmup_steps": 1,
    } == told


def test_images_behind_a_step_end_with_their_epoch(shapes: Path) -> None:
    """The last step of an epoch has what is left; the first of the next begins at all of them."""
    plan = planned(shapes, "TRAIN.BATCH_SIZE_PER_GPU=4", ranks=2)
    assert [0, 8, 16, 18, 26, 34, 36] == [plan.images(step) for step in range(7)]
    assert [Place(0, 2), Place(1, 0)] == [plan.place(step) for step in (1, 3)]
    assert [3, 4, 5, 6] == [plan.origin_step(step) for step in (3, 4, 5, 6)]


def test_periods_end_after_so_many_epochs(shapes: Path) -> None:
    """Of two epochs of six steps every twelfth; never where the period is 0."""
    plan = planned(shapes)
    assert [12, 24] == [step for step in range(1, 25) if plan.is_due(2, step)]
    assert [] == [step for step in range(1, 25) if plan.is_due(0, step)]


def test_a_run_may_be_cut_short_but_not_below_its_periods() -> None:
    """MAX_STEPS ends it earlier, never later; a period of the whole run is one that happens."""
    words = ["TRAIN.LR_SCHEDULE=[400,500]", "TRAIN.WARMUP=9", "TRAIN.STEPS_PER_EPOCH=20"]
    for most, steps in ((0, 500), (499, 499), (501, 500), (20, 20)):
        config = apply_settings(Config(), [*words, f"TRAIN.MAX_STEPS={most}"])
        assert steps == make_schedule(config, ranks=8, num_images=5).steps
    config = apply_settings(Config(), [*words, "TRAIN.MAX_STEPS=19"])
    with pytest.raises(ConfigError) as error:
        make_schedule(config, ranks=8, num_images=5)
    assert str(error.value) == (
        "TRAIN.EVAL_PERIOD=1 would never happen: 1 x 20 steps are more than the run's 19; give at most 0 "
        "or lower TRAIN.STEPS_PER_EPOCH"
    )
    config = apply_settings(Config(), ["TRAIN.LR_SCHEDULE=[40]", "TRAIN.WARMUP=39", "TRAIN.CHECKPOINT_PERIOD=2"])
    assert 40 == make_schedule(config, ranks=8, num_images=160).steps
    with pytest.raises(ConfigError, match=r"TRAIN.WARMUP=40 does not fit in a run of 40: give a shorter"):
        make_schedule(apply_settings(config, ["TRAIN.WARMUP=40"]), ranks=8, num_images=160)
    with pytest.raises(ConfigError, match=r"CHECKPOINT_PERIOD=3 would never happen: .*; give at most 2$"):
        make_schedule(apply_settings(config, ["TRAIN.CHECKPOINT_PERIOD=3"]), ranks=8, num_images=160)


def test_rates_drop_where_the_epochs_say() -> None:
    """Steps are rounded up; the first rate of a warm-up is never above the one that it leads to."""
    words = ["TRAIN.LR_EPOCH_SCHEDULE=[(1.5,.5),(2,.25),(3,None)]", "TRAIN.WARMUP=2", "TRAIN.WARMUP_INIT_LR=1"]
    schedule = make_schedule(apply_settings(Config(), words), ranks=4, num_images=27)
    assert [(0, 0.005), (11, 0.0025), (14, 0.00125)] == rates(schedule)
    assert (21, 2, 0.005) == (schedule.steps, schedule.warmup_steps, schedule.warmup_start)


@pytest.mark.parametrize(
    ("words", "ranks", "said"),
    [
        (["DATA.BASEDIR="], 1, "DATA.BASEDIR is not set: give the folder with annotations/ and the images"),
        ([], 0, "0 ranks cannot train: give at least 1"),
        (["DATA.VAL=val2017,train2017"], 1, "DATA.VAL names 2 sets: a training evaluates on one"),
        (["BACKBONE.FREEZE_AT=1"], 1, "would freeze random weights: give BACKBONE.WEIGHTS=FILE.npz"),
        (["DATA.NUM_CATEGORY=4"], 1, "DATA.NUM_CATEGORY=4, but "),
    ],
)
def test_a_run_that_cannot_begin_is_refused(shapes: Path, words: list[str], ranks: int, said: str) -> None:
    """Before anything is read or written that it would need."""
    with pytest.raises(ConfigError) as error:
        planned(shapes, *words, ranks=ranks)
    assert said in str(error.value)


def test_weights_that_are_given_may_be_frozen(shapes: Path, tmp_path: Path) -> None:
    """The backbone's, or a whole model's to load; a file that is missing is named, either way."""
    (tmp_path / "w.npz").write_bytes(b"")
    config = apply_settings(Config(), [f"DATA.BASEDIR={shapes}", "TRAIN.LR_SCHEDULE=[2000]"])
    assert tmp_path / "w.npz" == make_plan(config, ranks=1, job_dir=None, load=tmp_path / "w.npz").load
    backbone = apply_settings(config, [f"BACKBONE.WEIGHTS={tmp_path / 'w.npz'}"])
    make_plan(backbone, ranks=1, job_dir=None, load=None)
    with pytest.raises(ConfigError, match=r"gone.npz does not exist: give the weights' npz"):
        make_plan(backbone, ranks=1, job_dir=None, load=tmp_path / "gone.npz")


def test_sets_of_other_categories_are_no_run(shapes: Path, tmp_path: Path) -> None:
    """Neither to learn from together nor to evaluate on."""
    (tmp_path / "annotations").mkdir()
    for name in ("train2017", "val2017"):
        shutil.copy(shapes / f"annotations/instances_{name}.json", tmp_path / "annotations")
    for name, images in (("train2017", "train2017"), ("val2017", "val2017"), ("other", "val2017")):
        (tmp_path / name).symlink_to(shapes / images)
    file = tmp_path / "annotations/instances_other.json"
    other = json.loads((shapes / "annotations/instances_val2017.json").read_text())
    other["categories"][0]["id"] = 77
    file.write_text(json.dumps(other))
    with pytest.raises(ConfigError, match=r"instances_other.json has other categories than .*instances_train2017.json"):
        planned(tmp_path, "DATA.VAL=other")
    with pytest.raises(ConfigError, match=r"there 1 is circle, here missing: export both with the same ids"):
        planned(tmp_path, "DATA.TRAIN=train2017,other")
    other["categories"][0]["id"] = 1
    for entry in other["annotations"]:
        entry["iscrowd"] = 1
    file.write_text(json.dumps(other))
    with pytest.raises(ConfigError, match=r"DATA.TRAIN has no image with an object"):
        planned(tmp_path, "DATA.TRAIN=other", "DATA.VAL=other")
    every = planned(tmp_path, "DATA.TRAIN=train2017,val2017", "DATA.FILTER_EMPTY_ANNOTATIONS=False", ranks=1)
    assert 30 == len(every.pictures)


def test_names_of_categories_that_are_given_stay(shapes: Path) -> None:
    """Otherwise they are the annotations'."""
    assert ("circle", "square", "triangle") == planned(shapes).config.data.class_names
    assert ("a", "b", "c") == planned(shapes, "DATA.CLASS_NAMES=a,b,c").config.data.class_names


def test_a_job_that_has_begun_may_go_on_with_other_ranks_than_its_overlay_s(shapes: Path, tmp_path: Path) -> None:
    """Its first attempt may not; the ranks it began with are those that its checkpoint tells."""
    words = ["OVERLAY=8x4", *STARTED_FROM_NOTHING]
    with pytest.raises(ConfigError, match="OVERLAY=8x4 is for 8 ranks, here are 2"):
        planned(shapes, *words, ranks=2, job_dir=tmp_path)
    begun = planned(shapes, *words, ranks=8, job_dir=tmp_path)
    (tmp_path / CONFIG_FILE).write_text(json.dumps(keys.plain(begun.config)))
    assert (2, 2) == ((two := planned(shapes, *words, ranks=2, job_dir=tmp_path)).ranks, two.origin_ranks)
    Folder(tmp_path / "checkpoints").save(
        4, {"w": np.zeros(1, "f")}, {"images_seen": 64, "epoch": 2, "group": 0, "ranks": 8, "origin_ranks": 8}
    )
    assert (2, 8) == ((two := planned(shapes, *words, ranks=2, job_dir=tmp_path)).ranks, two.origin_ranks)


def test_a_job_goes_on_from_what_its_checkpoint_tells(shapes: Path) -> None:
    """The place in the data as of version 0.1, too; without images there is nothing to go on from."""
    plan = planned(shapes)
    assert plan == continued(plan, Position())
    assert plan == continued(plan, Position(0, 0, 0, 0, 2, 2))
    old = continued(plan, Position(5, 15))
    assert (5, Place(0, 15), 0, 3) == (old.first_step, old.first, old.before, old.origin_ranks)
    told = continued(plan, Position(7, 21, 1, 3, 2, 6))
    assert (7, Place(1, 3), 2, 6) == (told.first_step, told.first, told.before, told.origin_ranks)
    assert 12 == told.schedule.steps and 2 == told.parts


def test_a_position_is_all_of_what_a_checkpoint_says() -> None:
    """One of version 0.1 knows steps and images alone; numbers of ranks are at least one."""
    more = {"images_seen": 36, "epoch": 2, "group": 4, "ranks": 3, "origin_ranks": 6}
    assert Position(9, 36, 2, 4, 3, 6) == Position.of(Facts(step=9, time="", sha256="", bytes=0, more=more))
    for key in ("ranks", "origin_ranks"):
        with pytest.raises(TrainerError, match=f"of step 9 does not tell where to go on .*{key}"):
            Position.of(Facts(step=9, time="", sha256="", bytes=0, more={**more, key: 0}))


def test_a_folder_that_is_no_job_s_is_refused(tmp_path: Path) -> None:
    """A file, and checkpoints without settings; an empty folder and an absent one are fine."""
    check_job_dir(tmp_path / "absent", Config())
    check_job_dir(tmp_path, Config())
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--job-dir .*/file is a file"):
        check_job_dir(tmp_path / "file", Config())
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(ConfigError, match="holds checkpoints of another trainer: give another --job-dir"):
        check_job_dir(tmp_path, Config())


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        (["--async-eval"], {"TRAIN.ASYNC_EVAL": True}),
        (["--checkpoint-seconds", "70"], {"TRAIN.CHECKPOINT_SECONDS": 70.0}),
        (["--config", "TRAIN.SEED=5", "TRAIN.MOMENTUM=0.5", "--config", "TRAIN.SEED=6"], {"TRAIN.SEED": 6}),
        (["TRAIN.SEED=7", "--json"], {"TRAIN.SEED": 7}),
    ],
)
def test_options_are_settings(
    shapes: Path, capsys: pytest.CaptureFixture[str], words: list[str], changes: dict[str, object]
) -> None:
    """As the check says them, in JSON."""
    given = [*STARTED_FROM_NOTHING, f"DATA.BASEDIR={shapes}", "TRAIN.LR_SCHEDULE=[2000]", "TRAIN.WARMUP=1"]
    assert 0 == main(["--check", "--json", *words, *given])
    assert changes.items() <= json.loads(capsys.readouterr().out)["config"].items()
    assert 2 == main(["--check", "--threads", "0", *given])
    assert "--threads is 0: give 1 or more" in capsys.readouterr().err
    assert 0 == main(["--check", "--threads", "1", "--ranks", "2", *given])
    assert "ranks            2 x 1 image = 2 per step" in capsys.readouterr().out
