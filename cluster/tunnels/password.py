"""Password input: typed twice, or read from a file that only its owner can read. Never an argument."""

import getpass
import stat
import sys
from pathlib import Path

from cluster.errors import ConfigError

LEAST = 8  # characters


def asked_for() -> str:
    """Ask for a password twice. Raises ConfigError without a terminal, or if it is too short or the two differ."""
    if not sys.stdin.isatty():
        raise ConfigError("there is no terminal to type a password on: give --password-file FILE")
    first = _long_enough(getpass.getpass("password for the page: "))
    if first != getpass.getpass("once more: "):
        raise ConfigError("the two are not the same")
    return first


def read_from(name: str) -> str:
    """Return the file's first line. Raises ConfigError if others may read the file or the password is too short."""
    path = Path(name).expanduser()
    try:
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(f"{path} can be read by others: chmod 600 {path}")
        return _long_enough((path.read_text().splitlines() or [""])[0].strip())
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path} cannot be read: {getattr(e, 'strerror', None) or e}") from None


def _long_enough(password: str) -> str:
    if len(password) < LEAST:
        raise ConfigError(f"the password has {len(password)} characters, at least {LEAST} are wanted")
    return password
