"""What a whole life of the stack costs against the fake: create, update, delete of the full template, and the
size of the largest.

`python benchmarks/stack.py` writes benchmarks/results/stack.json. The cycle is compared with the limit that the
project set
itself; the start of the fake is not part of it, plan and preflight are.
"""

import json
import os
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks/results/stack.json"
LIMIT_S = 3.0


def cycle(file: Any, workers: int) -> dict[str, float]:
    """Seconds of each part of one life."""
    from cfn import create, plan, update
    from cfn.aws import Aws

    parts, aws = {}, Aws(file.region)
    start = time.perf_counter()
    create.create(aws, plan.make(aws, file), lambda _: None)
    parts["create"] = time.perf_counter() - start
    more = replace(file, nodes=replace(file.nodes, workers=workers))
    start = time.perf_counter()
    update.execute(aws, update.prepare(aws, more), more, lambda _: None)
    parts["update"] = time.perf_counter() - start
    start = time.perf_counter()
    create.delete(aws, more, lambda _: None)
    parts["delete"] = time.perf_counter() - start
    return parts


def main(runs: int = 7) -> None:
    """Measure and write the rows."""
    from cfn import plan
    from cfn.aws import Aws
    from cluster.clusterfile.model import Access, ClusterFile, Nodes, Storage
    from cfn.template.design import TAG
    from lab.aws import start

    with start(scale=0.05, tag_prefix=TAG) as fake:
        os.environ |= {
            "AWS_ENDPOINT_URL": fake.url,
            "AWS_ACCESS_KEY_ID": "fake",
            "AWS_SECRET_ACCESS_KEY": "fake",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        access = Access(ssh_from="203.0.113.7/32")
        file = ClusterFile(name="bench", nodes=Nodes(workers=3), access=access, storage=Storage(fsx_gib=1200))
        lives = []
        for _ in range(runs + 1):  # the first one loads moto's data
            lives.append(cycle(file, 5))
            fake.reset()
        totals = [sum(life.values()) for life in lives[1:]]
        large = ClusterFile(name="large", nodes=Nodes(instance_type="p5.48xlarge", workers=63), access=access)
        size = len(plan.make(Aws(large.region), large).body.encode())
    rows = [_of_lives("create, update (3 to 5 workers), delete of the full template against the fake", totals)]
    rows += [_of_lives(f"of it {part}", [life[part] for life in lives[1:]]) for part in ("create", "update", "delete")]
    rows.append(_row("template of 1 + 63 p5.48xlarge", size, "bytes", "limit 51200 bytes", 51_200, 1, (size, size)))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    for row in rows:
        print(f"{row['what']}: {row['value']} {row['unit']} ({row['ratio']} of {row['against']})")


def _of_lives(what: str, seconds: list[float]) -> dict[str, Any]:
    spread = min(seconds), max(seconds)
    return _row(what, statistics.median(seconds), "s", f"limit {LIMIT_S} s", LIMIT_S, len(seconds), spread)


def _row(
    what: str, value: float, unit: str, against: str, limit: float, runs: int, spread: tuple[float, float]
) -> dict[str, Any]:
    return {
        "what": what,
        "value": round(value, 3),
        "unit": unit,
        "against": against,
        "ratio": round(value / limit, 3),
        "goal": 1.0,
        "runs": runs,
        "spread": [round(s, 3) for s in spread],
    }


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
