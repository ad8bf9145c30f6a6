"""Reference mode: REFERENCE=tensorpack makes this trainer compute as tensorpack's example does. No TensorFlow."""

from typing import Any

from trainer.maskrcnn.rules import need

REFERENCES = ("", "tensorpack")
TENSORPACK: dict[str, Any] = {
    "RPN.ANCHOR_CENTER": 0.0,
    "RPN.TIED_ANCHORS": False,
    "FPN.GN_HEAD_ORDER": "relu-norm",
    "FRCNN.BOX_LOSS": "l1",
    "MRCNN.SOFT_TARGETS": True,
    "MRCNN.RESIZED_MASKS": True,
    "PREPROC.ROUND_MAX_SIZE": True,
    "PREPROC.PREDEFINED_PADDING": False,
    "TRAIN.BATCH_SIZE_PER_GPU": 1,
}
"""Settings that REFERENCE=tensorpack implies. Other values beside it are refused."""
NONE_DROPPED = -1.0
"""RPN.MIN_SIZE that drops no proposal, the meaning of 0 in tensorpack."""


def implied(reference: str) -> dict[str, Any]:
    """Return the settings that REFERENCE implies. Settings that are given explicitly are applied after them."""
    return {**TENSORPACK, "RPN.MIN_SIZE": NONE_DROPPED} if reference == "tensorpack" else {}


def check(config: Any) -> None:
    """Check that the configuration keeps the settings that its REFERENCE implies.

    Raises:
        ConfigError: a setting differs. The message names the first.
    """
    need(config.reference in REFERENCES, f"REFERENCE is {config.reference!r}: give tensorpack, or nothing")
    if config.reference != "tensorpack":
        return
    need(config.mode_fpn, "REFERENCE=tensorpack is for the feature pyramid: leave it or MODE_FPN=False out")
    for key, value in TENSORPACK.items():
        group, _, name = key.lower().partition(".")
        given = getattr(getattr(config, group), name)
        need(given == value, f"{key}={given} is not as REFERENCE=tensorpack has it ({value}): leave one of them out")
    rpn = config.rpn
    need(
        rpn.min_size != 0,
        "RPN.MIN_SIZE=0 drops nothing in tensorpack: with REFERENCE=tensorpack give -1 or leave it out",
    )
    for when in ("train", "test"):
        most = {getattr(rpn, f"{when}_{name}_topk") for name in ("per_level_pre_nms", "per_level_nms", "image")}
        key = f"RPN.{when.upper()}"
        need(
            len(most) == 1,
            f"{key}_PER_LEVEL_PRE_NMS_TOPK, {key}_PER_LEVEL_NMS_TOPK and {key}_IMAGE_TOPK are one number in "
            "tensorpack: with REFERENCE=tensorpack give all the same",
        )
