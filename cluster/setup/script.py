"""Operator's set-up script, which `setup` in cluster.toml names."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from cluster.clusterfile.checks import FieldError
from cluster.secret_scan import secret_or_password_in

MOST_BYTES = 16 * 1024  # it is part of the stack's template, which has little more space


@dataclass(frozen=True, kw_only=True)
class Script:
    """Set-up script with its name and digest."""

    name: str
    text: str

    @property
    def digest(self) -> str:
        """Return the hash of its content: it runs once per digest on each host."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]


def read_script(path: Path) -> Script:
    """Read the script. Raises FieldError if it cannot be run or contains a secret."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise FieldError("setup", f"there is no file {path}", "write the script, or leave the line out") from None
    except (OSError, UnicodeDecodeError) as e:
        raise FieldError("setup", f"{path} cannot be read as a script: {e}", "give a text file") from e
    if not text.strip():
        raise FieldError("setup", f"{path} is empty", "write the script, or leave the line out")
    if len(text.encode()) > MOST_BYTES:
        raise FieldError(
            "setup",
            f"{path} has {len(text.encode()):,} bytes, at most {MOST_BYTES:,} travel with a stack",
            "have it fetch what is long",
        )
    _refuse_secrets(path, text)
    return Script(name=path.name, text=text)


def _refuse_secrets(path: Path, text: str) -> None:
    """Raise FieldError for a secret that `inv sync` would refuse, too, and for a password in an address."""
    data = text.encode()
    if found := secret_or_password_in(data):
        what, at = found
        line = 1 + data.count(b"\n", 0, at)
        raise FieldError(
            "setup",
            f"{path}:{line} holds {what}, which the stack and every node's log would show",
            "have the script fetch it with the nodes' role",
        )
