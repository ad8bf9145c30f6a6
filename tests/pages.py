"""Commands that the documentation shows in its blocks, typed as they are printed."""

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from cluster.inventory import ROOT
from tests.conftest import PATIENCE_S

MARK = "== typed: "
CHECKOUT = f"""#!/bin/sh
exec env 'PYTHONPATH={ROOT}' '{ROOT}/.venv/bin/python' -m dlami.program "$@"
"""


def block(page: str, first: str) -> list[str]:
    """Return the lines of the page's only block with a line that begins so; comments stay, for a shell ignores them."""
    text = (ROOT / page).read_text()
    blocks = [
        b
        for b in re.findall(r"(?:^ {4}.*\n)+", text, re.MULTILINE)
        if re.search(rf"^ {{4}}{re.escape(first)}", b, re.M)
    ]
    assert len(blocks) == 1, f"{len(blocks)} blocks of {page} have {first!r}"
    return [line.removeprefix("    ") for line in blocks[0].splitlines()]


def typed(
    lines: list[str], *, folder: Path, path: Path, replaced: Mapping[str, str] = {}, **env: str
) -> dict[str, str]:
    """Type the lines into one shell, in a folder, with the commands of `path`; a line that fails ends it.

    Args:
        replaced: what the page has for something of the reader's own, and what it is here.
    Returns what each line printed.
    """
    script = "set -e\n"
    for line in lines:
        here = line
        for printed, own in replaced.items():
            here = here.replace(printed, own)
        script += f"echo '{MARK}'{_quoted(line)}; echo '{MARK}'{_quoted(line)} >&2\n{here}\n"
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env={**own_variables(), "PATH": f"{path}:{os.environ['PATH']}", **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=4 * PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    said: dict[str, str] = {}
    for part in done.stdout.split(MARK)[1:]:
        line, _, text = part.partition("\n")
        said[line] = said.get(line, "") + text
    return said


def own_variables() -> dict[str, str]:
    """Return this process's environment without what names a cluster, a checkout or an account."""
    return {k: v for k, v in os.environ.items() if k not in ("CLUSTER", "PYTHONPATH") and not k.startswith("AWS_")}


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
