"""Rules for the settings' values. Each is a function that raises `ConfigError` with the setting's name."""

from trainer.common.files.errors import ConfigError


def need(condition: bool, message: str) -> None:
    """Raise `ConfigError(message)` unless the condition holds."""
    if not condition:
        raise ConfigError(message)


def choice(key: str, value: object, choices: tuple[object, ...]) -> None:
    """Raise `ConfigError` unless the value is one of the choices."""
    need(value in choices, f"{key} is {value!r}: give one of {', '.join(map(str, choices))}")


def fraction(key: str, value: float) -> None:
    """Raise `ConfigError` unless 0 <= value <= 1."""
    need(0 <= value <= 1, f"{key} is {value}: give a number from 0 to 1")


def positive(key: str, value: float) -> None:
    """Raise `ConfigError` unless value > 0."""
    need(value > 0, f"{key} is {value}: give a number above 0")
