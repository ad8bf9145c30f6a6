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
from trainer.common.checkpoints.checkpoint import CheckpointFolder
from trainer.common.checkpoints.facts import Facts
from trainer.common.data.sampler import DataPosition
from trainer.common.files.errors import ConfigError, TrainerError
from trainer.maskrcnn import keys
from trainer.maskrcnn.__main__ import main
from trainer.maskrcnn.config import Config
from trainer.maskrcnn.keys import apply_settings
from trainer.maskrcnn.plan import DetectorPlan, continued, make_plan, make_schedule, rates, reference_steps, text
from trainer.maskrcnn.resume import CONFIG_FILE, DetectorPosition, check_job_dir

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


STAGES, ONES = "CASCADE.BBOX_REG_WEIGHTS", [1.0] * 4


def refusal(*settings: str) -> str:
    """What is said of settings that are refused."""
    with pytest.raises(ConfigError) as error:
        apply_settings(Config(), settings)
    return str(error.value)


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


@pytest.mark.parametrize("key", ["EVAL_PERIOD", "CHECKPOINT_PERIOD"])
def test_a_period_that_never_comes_is_refused(key: str) -> None:
    """The reference's scripts set periods of 0 or beyond the end; nothing was ever saved or evaluated."""
    config = apply_settings(Config(), ["TRAIN.LR_EPOCH_SCHEDULE=[(12,None)]", "TRAIN.WARMUP=1", f"TRAIN.{key}=13"])
    with pytest.raises(ConfigError) as error:
        make_schedule(config, ranks=2, num_images=100)
    assert f"TRAIN.{key}=13 would never happen" in str(error.value)
    assert "give at most 12" in str(error.value)


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


def begun(shapes: Path, ranks: int) -> DetectorPlan:
    """Forty epochs of 18 images."""
    words = [
        *STARTED_FROM_NOTHING,
        f"DATA.BASEDIR={shapes}",
        "TRAIN.LR_EPOCH_SCHEDULE=[(20,.1),(40,None)]",
        "TRAIN.WARMUP=9",
    ]
    return make_plan(apply_settings(Config(), words), ranks=ranks, job_dir=None, load=None)


def position(plan: DetectorPlan, step: int) -> DetectorPosition:
    """Where a checkpoint of this step says that the run is."""
    place = plan.place(step)
    return DetectorPosition(step, plan.images(step), place.epoch, place.group, plan.ranks, plan.origin_ranks)


def test_where_images_cannot_be_shared_the_rate_is_rescaled(shapes: Path) -> None:
    """Three of four: three quarters of the rate at the same epoch, and the run's end is that of the epochs."""
    whole = begun(shapes, 4)
    rest = continued(begun(shapes, 3), position(whole, 50))

    assert "3 ranks instead of 4: learning rate x 0.75, for 3 images per step instead of 4" == rest.change
    assert 0.75 * whole.rate(60) == pytest.approx(rest.rate(62))
    assert (whole.images(whole.steps), rest.place(rest.steps).epoch) == (rest.images(rest.steps), 40)
    assert [0.75 * whole.rate(s) for s in (99, 100)] == pytest.approx([rest.rate(s) for s in (50 + 59, 50 + 60)])
    assert DetectorPosition(160, 320) == DetectorPosition.of(
        Facts(step=160, time="", sha256="", bytes=0, more={"images_seen": 320})
    )
    assert DataPosition(16) == continued(begun(shapes, 4), DetectorPosition(160, 320)).first
    with pytest.raises(
        TrainerError, match="does not tell where to go on \\(images_seen is missing\\): it is of another"
    ):
        DetectorPosition.of(Facts(step=160, time="", sha256="", bytes=0, more={"images": 320}))


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


def planned(shapes: Path, *words: str, ranks: int = 3, job_dir: Path | None = None) -> DetectorPlan:
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


def test_a_job_that_has_begun_may_go_on_with_other_ranks_than_its_overlay_s(shapes: Path, tmp_path: Path) -> None:
    """Its first attempt may not; the ranks it began with are those that its checkpoint tells."""
    words = ["OVERLAY=8x4", *STARTED_FROM_NOTHING]
    with pytest.raises(ConfigError, match="OVERLAY=8x4 is for 8 ranks, here are 2"):
        planned(shapes, *words, ranks=2, job_dir=tmp_path)
    begun = planned(shapes, *words, ranks=8, job_dir=tmp_path)
    (tmp_path / CONFIG_FILE).write_text(json.dumps(keys.plain(begun.config)))
    assert (2, 2) == ((two := planned(shapes, *words, ranks=2, job_dir=tmp_path)).ranks, two.origin_ranks)
    CheckpointFolder(tmp_path / "checkpoints").save(
        4, {"w": np.zeros(1, "f")}, {"images_seen": 64, "epoch": 2, "group": 0, "ranks": 8, "origin_ranks": 8}
    )
    assert (2, 8) == ((two := planned(shapes, *words, ranks=2, job_dir=tmp_path)).ranks, two.origin_ranks)


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
