"""Conversion between `GROUP.KEY=VALUE`, with the reference's names, and a `Config`."""

import ast
import difflib
import json
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, get_args, get_type_hints

from trainer.common.files.errors import ConfigError
from trainer.maskrcnn.config import Config
from trainer.maskrcnn.overlays import laid_over
from trainer.maskrcnn.reference import implied

ALIASES = {
    "BACKBONE.RESNET_NUM_BLOCK": "BACKBONE.RESNET_NUM_BLOCKS",
    "PREPROC.SHORT_EDGE_SIZE": "PREPROC.TRAIN_SHORT_EDGE_SIZE",
    "TRAIN.WARMUP_STEPS": "TRAIN.WARMUP",
    "TRAIN.BATCH_SIZE": "TRAIN.BATCH_SIZE_PER_GPU",
    "RPN.TRAIN_PRE_NMS_TOPK": "RPN.TRAIN_PER_LEVEL_PRE_NMS_TOPK",
    "RPN.TRAIN_POST_NMS_TOPK": "RPN.TRAIN_IMAGE_TOPK",
    "RPN.TEST_PRE_NMS_TOPK": "RPN.TEST_PER_LEVEL_PRE_NMS_TOPK",
    "RPN.TEST_POST_NMS_TOPK": "RPN.TEST_IMAGE_TOPK",
    "RPN.TRAIN_TOPK_PER_IMAGE": "RPN.TRAIN_IMAGE_TOPK",
    "RPN.TEST_TOPK_PER_IMAGE": "RPN.TEST_IMAGE_TOPK",
    "TRAIN.ASYNC_EVALUATION": "TRAIN.ASYNC_EVAL",
}
"""Other names of the same value in one of the references' versions."""


@dataclass(frozen=True)
class Settled:
    """Key of the references that has only one supported value here."""

    allowed: tuple[Any, ...]
    why: str


ONE_LAYOUT = "tensors are laid out NHWC, which is the fast layout on CPUs and on tensor cores"
SETTLED = {
    "TRAINER": Settled(("horovod", "replicated"), "every run goes through Horovod, one rank included"),
    "DATA.ABSOLUTE_COORD": Settled((True,), "boxes are in pixels"),
    "TRAIN.NUM_GPUS": Settled((None,), "the number of ranks comes from mpirun"),
    "TRAIN.STARTING_EPOCH": Settled((1,), "a run continues from the newest checkpoint of its --job-dir"),
    "RPN.ANCHOR_STRIDE": Settled((16,), "it is C4's stride; with a pyramid it has no meaning"),
    "RPN.UNQUANTIZED_ANCHOR": Settled((True,), "anchors are never rounded"),
    "FPN.ANCHOR_STRIDES": Settled(((4, 8, 16, 32, 64),), "the pyramid's strides follow from its levels"),
    "FPN.PROPOSAL_MODE": Settled(("Level",), "proposals are chosen per level, then per image"),
    "TEST.BATCH_SIZE_PER_GPU": Settled((1,), "evaluation takes one image at a time on every rank"),
    "BACKBONE.NCHW": Settled((False,), ONE_LAYOUT),
    "FPN.NCHW": Settled((False,), ONE_LAYOUT),
    "RPN.NCHW": Settled((False,), ONE_LAYOUT),
    "MRCNN.NCHW": Settled((False,), ONE_LAYOUT),
}

ALONE = {"REFERENCE": str, "OVERLAY": tuple[str, ...], "MODE_MASK": bool, "MODE_FPN": bool}
"""Keys without a group, and their types."""
C4_LIMITS = {"RPN.TRAIN_PER_LEVEL_PRE_NMS_TOPK": 12000, "RPN.TEST_PER_LEVEL_PRE_NMS_TOPK": 6000}
"""Settings that MODE_FPN=False implies, too: its one level has the anchors of five."""
GROUPS = tuple(f.name for f in fields(Config) if f.name.upper() not in ALONE)


def known_keys() -> dict[str, Any]:
    """Return every key of this trainer with the type of its value."""
    types: dict[str, Any] = {**ALONE}
    for group in GROUPS:
        cls = get_type_hints(Config)[group]
        hints = get_type_hints(cls)
        types |= {f"{group.upper()}.{f.name.upper()}": hints[f.name] for f in fields(cls)}
    return types


def apply_settings(config: Config, settings: Iterable[str]) -> Config:
    """Return the configuration with `KEY=VALUE` settings applied in order.

    Raises:
        ConfigError: an unknown key (with the nearest right name), a value of the wrong type, an impossible value.
    """
    types = known_keys()
    changes: dict[str, dict[str, Any]] = {}
    given = [_split(setting) for setting in settings]
    named = dict(given)
    overlays = parse_value("OVERLAY", named.get("OVERLAY", "()"), types["OVERLAY"])
    meant = {**laid_over(overlays), **implied(named.get("REFERENCE", ""))}
    if named.get("MODE_FPN") == "False":
        meant |= C4_LIMITS
    for key, value in [*((key, str(value)) for key, value in meant.items()), *given]:
        key = ALIASES.get(key, key)
        if key in SETTLED:
            _check_settled(key, value)
        elif key in types:
            group, _, name = key.lower().rpartition(".")
            changes.setdefault(group, {})[name] = parse_value(key, value, types[key])
        else:
            raise ConfigError(_unknown(key, [*types, *ALIASES, *SETTLED]))
    alone = changes.pop("", {})
    groups = {group: replace(getattr(config, group), **values) for group, values in changes.items()}
    return replace(config, **groups, **alone)


def dump(config: Config) -> dict[str, Any]:
    """Return every key and its value, ready for JSON."""
    flat: dict[str, Any] = {key: getattr(config, key.lower()) for key in ALONE}
    for group in GROUPS:
        owner = getattr(config, group)
        flat |= {f"{group.upper()}.{f.name.upper()}": getattr(owner, f.name) for f in fields(owner)}
    return flat


def plain(config: Config) -> dict[str, Any]:
    """Return `dump` as it is read back from JSON."""
    value: dict[str, Any] = json.loads(json.dumps(dump(config)))
    return value


def load(flat: dict[str, Any]) -> Config:
    """Return the configuration that `dump` wrote. Keys of other versions are refused like typing mistakes."""
    return apply_settings(
        Config(), [f"{key}={value if isinstance(value, str) else repr(value)}" for key, value in flat.items()]
    )


def parse_value(key: str, text: str, kind: Any) -> Any:
    """Parse a setting's text to the key's type. `None`, tuples and lists are written as in Python."""
    value: Any = _freeze(_literal(text))
    candidate: Any
    for candidate in (value, (value,), text):
        if _fits(candidate, kind):
            return float(candidate) if kind is float else candidate
    raise ConfigError(f"{key}={text}: expected {_describe(kind)}")


def _split(setting: str) -> tuple[str, str]:
    key, equals, value = setting.partition("=")
    if not equals or not key:
        raise ConfigError(f"'{setting}' is not a setting: write KEY=VALUE, as in TRAIN.BASE_LR=0.01")
    return key.strip(), value.strip()


def _check_settled(key: str, text: str) -> None:
    allowed = SETTLED[key].allowed
    if _freeze(_literal(text)) not in allowed:
        raise ConfigError(f"{key}={text}: only {' or '.join(map(str, allowed))} is possible, {SETTLED[key].why}")


def _unknown(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key.upper(), known, n=1, cutoff=0.5)
    by_last = [k for k in known if k.rpartition(".")[2] == key.upper().rpartition(".")[2]]
    hint = next(iter([*by_last, *near]), None)
    return f"no setting is called {key}" + (f": did you mean {hint}?" if hint else "; docs/maskrcnn.md lists them all")


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        if "," in text and not set(text) & set("()[]"):
            return tuple(_literal(word.strip()) for word in text.split(",") if word.strip())
        return text


def _freeze(value: Any) -> Any:
    return tuple(_freeze(v) for v in value) if isinstance(value, list | tuple) else value


def _fits(value: Any, kind: Any) -> bool:
    origin = getattr(kind, "__origin__", None)
    if origin is tuple:
        args = get_args(kind)
        if not isinstance(value, tuple):
            return False
        if args[-1] is Ellipsis:
            return all(_fits(v, args[0]) for v in value)
        return len(value) == len(args) and all(_fits(v, a) for v, a in zip(value, args, strict=True))
    if get_args(kind):
        return any(_fits(value, option) for option in get_args(kind))
    if kind is float:
        return type(value) in (int, float)
    return type(value) is kind


def _describe(kind: Any) -> str:
    names = {bool: "True or False", int: "a whole number", float: "a number", str: "a word"}
    return names.get(
        kind, "values as " + str(kind).replace("tuple", "").replace("[", "(").replace("]", ")").replace("typing.", "")
    )
