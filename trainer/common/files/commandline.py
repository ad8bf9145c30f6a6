"""Command line of the trainers' programs: flags made from dataclasses, and errors of one sentence."""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import MISSING, field, fields
from typing import Any, NoReturn

from trainer.common.files.errors import ConfigError


def flag(default: Any, text: str, **more: Any) -> Any:
    """A field with its help text; `check_fields` looks at `choices` and `least`."""
    return field(default=default, metadata={"help": text, **more})


def flag_name(field_name: str) -> str:
    """The field as the operator writes it."""
    return "--" + field_name.replace("_", "-")


# Modules of this package to the tasks that start them: with flags after two dashes, or with options of the task's own.
_PASS_FLAGS_ON = {
    "benchmark": "train.benchmark",
    "maskrcnn": "train.maskrcnn",
    "maskrcnn.evaluate": "maskrcnn.evaluate",
    "maskrcnn.export": "maskrcnn.export",
    "maskrcnn.predict": "maskrcnn.predict",
    "resnet50": "train.resnet50",
    "resnet50.export": "resnet50.export",
    "resnet50_torch": "train.resnet50-torch",
}
_HAVE_OPTIONS = {
    "coco.archives": "data.coco",
    "coco.bundle": "data.bundle",
    "coco.sample": "data.sample",
    "coco.verify": "data.verify",
    "imagenet": "data.imagenet",
    "matrix": "train.matrix",
    "plot": "train.plot",
    "sample": "data.sample",
    "scaling": "train.scaling",
    "verify": "data.verify",
}


class TrainerParser(argparse.ArgumentParser):
    """argparse, whose complaint is a `ConfigError`: one sentence, and only from rank 0.

    Flags may be written with underscores, as the references write theirs: `--batch_size` is `--batch-size`.
    """

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, with dashes in the place of underscores."""
        words = sys.argv[1:] if args is None else args
        return super().parse_known_args([_dashed(word) for word in words], namespace)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see {typed_help(self.prog)}")


def typed_help(program: str) -> str:
    """Return the command that shows a program's flags, as people type it: by its task, where it has one."""
    module = program.removeprefix("python -m trainer.")
    if module in _PASS_FLAGS_ON:
        return f"'inv {_PASS_FLAGS_ON[module]} -- --help'"
    return f"'inv --help {_HAVE_OPTIONS[module]}'" if module in _HAVE_OPTIONS else f"'{program} --help'"


def _dashed(word: str) -> str:
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if word.startswith("--") else word


def add_check_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a check before the ranks start: `--check`, `--ranks`, `--json`. Every trainer has them."""
    parser.add_argument("--check", action="store_true", help="say what would be done, or why it cannot be; then leave")
    parser.add_argument("--ranks", type=int, default=1, help="with --check: ranks the run will have (default 1)")
    parser.add_argument("--json", action="store_true", help="with --check: the plan as JSON")


def add_flags(parser: argparse.ArgumentParser, config: type, defaults: Mapping[str, Any] | None = None) -> None:
    """Add one flag per field of `config`, with its help and default. Booleans also have a --no- form.

    Args:
        defaults: by field name, what wins over the fields' own defaults.
    """
    for f in fields(config):
        name, text = flag_name(f.name), f.metadata["help"].replace("%", "%%")
        default = f.default if f.default is not MISSING else None
        default = (defaults or {}).get(f.name, default)
        if isinstance(f.default, bool):
            parser.add_argument(name, action=argparse.BooleanOptionalAction, default=default, help=text)
            continue
        shown = text if default is None else f"{text} (default {default})"
        parser.add_argument(
            name,
            type=f.metadata.get("type", type(f.default)),
            default=default,
            help=shown,
            choices=f.metadata.get("choices"),
        )


def check_fields(config: Any) -> None:
    """Every field by its own rule.

    Raises:
        ConfigError: a value is none of its choices, below its least, negative, infinite or no number.
    """
    for f in fields(config):
        _check(flag_name(f.name), getattr(config, f.name), f.metadata)


def _check(text: str, value: Any, rule: Mapping[str, Any]) -> None:
    if value is not None and "choices" in rule and value not in rule["choices"]:
        raise ConfigError(f"{text} is {value!r}; choose one of {', '.join(rule['choices'])}")
    if value is not None and "least" in rule and value < rule["least"]:
        raise ConfigError(f"{text} is {value}, but must be at least {rule['least']}")
    if value is not None and "most" in rule and value > rule["most"]:
        raise ConfigError(f"{text} is {value}, but must be at most {rule['most']}")
    if isinstance(value, float) and not (0 <= value < float("inf")):
        raise ConfigError(f"{text} is {value}, but must be a number that is not negative")


def numbers(text: str) -> tuple[float, ...]:
    """A list of numbers: `30,60,80`; the empty text is the empty list."""
    try:
        return tuple(float(word) for word in text.split(",") if word.strip())
    except ValueError as e:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers like 30,60,80") from e
