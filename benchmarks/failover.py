"""`stack.create` where three zones have no room for the first type, against where the first has: the whole command.

On the fake, whose nodes are ready at once: what is measured is how soon a zone without room is given up, rolled back
and followed by the next, in seconds more than the same cluster without. `inv bench --name failover`.
"""

import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import rounds  # noqa: E402

FIRST, SECOND = "p4d.24xlarge", "g5.12xlarge"
LIMIT_S = 5.0
FILE = """\
name = "bench"
region = "us-east-1"
[nodes]
instance_type = ["{first}", "{second}"]
workers = 3
[access]
ssh_from = "203.0.113.7/32"
"""


def command(folder: Path) -> float:
    """Seconds of `stack.create`, from the process's start to its end."""
    words = [sys.executable, "-m", "dlami.program", "stack.create", "--yes"]
    return rounds.seconds_of(words, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)})


def main(times: int = 7) -> None:
    """Measure, alternating, and write the rows."""
    from cfn import plan, stack
    from cfn.aws import Aws
    from cluster.clusterfile import text
    from cfn.template.design import TAG
    from lab.aws import start

    with start(scale=0.05, tag_prefix=TAG) as fake, tempfile.TemporaryDirectory() as made:
        os.environ |= {
            "AWS_ENDPOINT_URL": fake.url,
            "AWS_ACCESS_KEY_ID": "fake",
            "AWS_SECRET_ACCESS_KEY": "fake",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        folder = Path(made)
        (folder / "cluster.toml").write_text(FILE.format(first=FIRST, second=SECOND))
        choices = plan.make(Aws("us-east-1"), text.read(folder / "cluster.toml")).choices
        zones = [c.zone for c in choices if c.instance.name == FIRST]
        assert len(zones) >= 3

        def create(without: list[str], kind: str) -> float:
            fake.reset()
            fake.world.capacity = {f"{FIRST}@{zone}": 0 for zone in without}
            seconds = command(folder)
            assert kind == stack.outputs(Aws("us-east-1"), "bench")["InstanceType"]
            return seconds

        create([], FIRST)  # the first one loads moto's data
        runs = rounds.rounds(
            {"with room": lambda: create([], FIRST), "without": lambda: create(zones, SECOND)}, times
        )  # fmt: skip
    label = f"{len(zones)} zones without {FIRST}, then {SECOND}"
    rounds.write(
        "failover", [rounds.row(runs, "with room", label="stack.create of 4 nodes, room at once"), _over(runs, label)]
    )


def _over(runs: rounds.Runs, label: str) -> dict[str, Any]:
    """What the failover takes over a create with room in the same round, against the limit."""
    over = [a - b for a, b in zip(runs["without"], runs["with room"], strict=True)]
    row = rounds.row({"over": over}, "over", label=f"{label}: over that")
    return {**row, "against": f"limit {LIMIT_S:g} s", "ratio": round(statistics.median(over) / LIMIT_S, 3), "goal": 1.0}


if __name__ == "__main__":
    main()
