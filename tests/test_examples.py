"""The examples of property tests are a seed's, the same on every machine."""

import os
import subprocess
import sys
from pathlib import Path

from cluster.inventory import ROOT
from tests.conftest import PATIENCE_S
from tests.examples import SEED


def test_the_seed_draws_the_examples_of_property_tests(tmp_path: Path) -> None:
    """What CI finds on a commit is found wherever that commit is tried; another seed draws others, in CI too."""
    (tmp_path / "test_it.py").write_text(
        "from hypothesis import given, settings, strategies\n\n"
        "@settings(database=None)\n@given(strategies.integers())\ndef test_it(n):\n    print('drew', n)\n"
    )
    options = ["-p", "tests.examples", "-p", "no:cacheprovider", "-s", "-q", "-c", "/dev/null"]

    def examples(seed: str, **ci: str) -> list[str]:
        there = {**{k: v for k, v in os.environ.items() if k != "CI"}, SEED: seed, "PYTHONPATH": str(ROOT), **ci}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, str(tmp_path)],
            env=there,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            cwd=tmp_path,
        )
        assert 0 == done.returncode, done.stdout + done.stderr
        return [line for line in done.stdout.splitlines() if line.startswith("drew")]

    one, same, other = examples("1"), examples("1", CI="true"), examples("2", CI="true")
    assert one == same != other
    assert 50 < len(set(one))
