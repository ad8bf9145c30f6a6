"""100,000 different lines from 64 hosts, folded as `inv run` shows them: plain, as a difference, with own names masked.

In one process, as no host is needed for it: what is timed begins with the hosts' answers and ends with the text.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, from anywhere

from cluster.run import folding
from cluster.hosts import Host
from cluster.ssh.result import FanOut, Result
from rounds import row, rounds, write

HOSTS, LINES = 64, 100_000
LIMIT = "limit 1 s"
ANSWERS = {
    "every line another": "{address} says line {n} of its own, and that is no other host's",
    "half of the lines common": "{own} line {n} of a log that looks much alike on every host",
}


def main(times: int = 5) -> None:
    """Measure, compare with the limit, write results/fold.json."""
    rows = []
    for name, text in ANSWERS.items():
        results = answers(text)
        names = {h: [f"host-{h.rank}"] for h in results}
        runs = rounds(
            {
                f"{name}, folded": lambda r=results: seconds(lambda: folding.folded(r)),
                f"{name}, --diff": lambda r=results: seconds(lambda: folding.folded(r, diff=True)),
                f"{name}, --diff --mask": lambda r=results, n=names: seconds(
                    lambda: folding.folded(folding.masked(r, n), diff=True)
                ),
            },
            times,
        )
        for what in runs:
            rows.append(row(runs | {LIMIT: [1.0]}, what, LIMIT, 1.0, label=f"{LINES:,} lines of {HOSTS} hosts: {what}"))
    write("fold", rows)


def answers(text: str) -> FanOut:
    """So many lines over all hosts; in `{own}` two neighbouring lines differ by whether they are the host's alone."""
    hosts = [Host(rank=r, address=f"10.0.{r // 250}.{r % 250 + 1}", slots=8) for r in range(HOSTS)]
    each = -(-LINES // HOSTS)
    return FanOut(
        "x",
        {
            h: Result(
                host=h,
                exit_code=0,
                seconds=0.1,
                stdout="".join(
                    text.format(address=h.address, n=n, own=h.address if n % 2 else "any") + "\n" for n in range(each)
                ).encode(),
            )
            for h in hosts
        },
    )


def seconds(fold: Callable[[], str]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    text = fold()
    assert text
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
