"""Host keys: this host's own keys, and the keys that its ssh expects of the other hosts."""

from __future__ import annotations

import contextlib
import glob
import os
from typing import Any, NamedTuple

from cluster.health.onhost.readings import output

AUTHORITY = "@cert-authority"  # marks the key of a certificate authority


class Settings(NamedTuple):
    """Settings by which this host's ssh looks for the key of an address."""

    name: str  # as in a known_hosts file
    files: tuple[str, ...]
    port: str


def trust(addresses: list[str]) -> dict[str, Any]:
    """Return this host's keys (`shows`), and the keys that it expects of each address (`expects`)."""
    usual = settings_for(addresses[0])
    names = {_with_port(a, usual.port): a for a in addresses}
    known: dict[str, list[str]] = {a: [] for a in addresses}
    for path in usual.files:
        for line in _lines(path):
            words = line.split()
            if len(words) >= 3 and not line.startswith(("#", "@")):
                for name in _named(words[0], list(names)):
                    if name in names:
                        known[names[name]].append(f"{words[1]} {words[2]}")
    shows = [" ".join(line.split()[:2]) for path in glob.glob("/etc/ssh/ssh_host_*_key.pub") for line in _lines(path)]
    return {"shows": shows, "expects": {a: keys or _asked(a) for a, keys in known.items()}}


def settings_for(address: str) -> Settings:
    """Return the settings that `ssh -G` prints for an address, the usual ones if there is no ssh."""
    said = ""
    with contextlib.suppress(OSError):
        said = output(["ssh", "-G", address])
    values = {words[0]: words[1:] for words in map(str.split, said.splitlines()) if len(words) > 1}
    port = values.get("port", ["22"])[0]
    alias, host = values.get("hostkeyalias", [""])[0], values.get("hostname", [address])[0]
    files = (*values.get("userknownhostsfile", ()), *values.get("globalknownhostsfile", ()))
    usual = ("~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts")
    return Settings(alias or _with_port(host, port), tuple(map(os.path.expanduser, files or usual)), port)


def _asked(address: str) -> list[str]:
    """Return the keys that ssh-keygen finds, which covers patterns and settings of this address only.

    Call it only for an address that no plain line names: starting it and ssh for each address would cost too much.
    """
    settings, keys = settings_for(address), []
    for path in settings.files:
        with contextlib.suppress(OSError):  # it fails if it finds nothing
            for line in output(["ssh-keygen", "-F", settings.name, "-f", path]).splitlines():
                words = line.split()
                marks = words[:1] if line.startswith(AUTHORITY) else []
                if len(words) >= 3 + len(marks) and (marks or not line.startswith(("#", "@"))):
                    keys.append(" ".join([*marks, *words[1 + len(marks) : 3 + len(marks)]]))
    return keys


def _with_port(host: str, port: str) -> str:
    return host if port == "22" else f"[{host}]:{port}"


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []


def _named(field: str, names: list[str]) -> list[str]:
    """Return the names in a known_hosts line. For a hashed name each wanted name is hashed and compared."""
    if not field.startswith("|1|"):
        return field.split(",")
    import base64
    import hashlib
    import hmac

    salt, said = (base64.b64decode(part) for part in field.split("|")[2:4])
    return [name for name in names if hmac.new(salt, name.encode(), hashlib.sha1).digest() == said]
