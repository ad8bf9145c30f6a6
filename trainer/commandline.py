"""What the trainer's programs share on the command line: dataclasses as flags, complaints in one sentence."""

import argparse
from collections.abc import Mapping
from dataclasses import MISSING, field, fields
from typing import Any, NoReturn

from trainer.errors import ConfigError


def flag(default: Any, text: str, **more: Any) -> Any:
    """A field with its help text; `check_fields` looks at `choices` and `least`."""
    return field(default=default, metadata={"help": text, **more})


def flag_name(field_name: str) -> str:
    """The field as the operator writes it."""
    return "--" + field_name.replace("_", "-")


class Parser(argparse.ArgumentParser):
    """argparse, whose complaint is a `ConfigError`: one sentence, and only from rank 0."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see {self.prog} --help")


def add_flags(parser: argparse.ArgumentParser, config: type, defaults: Mapping[str, Any] | None = None) -> None:
    """One flag per field of `config`, with its help and default; booleans also have a --no- form.

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
