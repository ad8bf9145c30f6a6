"""Frames of `inv top`."""

import dataclasses
from pathlib import Path
from typing import Any

from cluster.hosts import Host
from cluster.top.outliers import with_odd
from cluster.top.reading import rates, vitals_of
from cluster.top.snapshot import ClusterSnapshot, HostState, JobSeen, Visibility

RECORDED = Path(__file__).parents[1] / "recorded/gpu-now"


ANSWER: dict[str, Any] = {
    "question": 1, "now": 100.0, "cpu": {"busy": 50, "all": 200, "cores": 4}, "memory": {"total": 1000, "used": 400},
    "net": {"in": 1000, "out": 2000}, "disk": {"read": 0, "written": 0}, "full": 0.25, "gpus": None, "ping_s": 0.0002,
    "ranks": [{"job": "j", "attempt": 1, "rank": 0, "step": 7, "phase": 2, "silent_s": 0.1}], "jobs": None,
}  # fmt: skip


LATER = {
    **ANSWER, "now": 102.0, "cpu": {"busy": 150, "all": 400, "cores": 4}, "net": {"in": 5000, "out": 2000},
    "disk": {"read": 4000, "written": 200},
}  # fmt: skip


def told(name: str) -> dict[str, Any]:
    text = next(RECORDED.glob(f"{name}*.csv")).read_text()
    return {**ANSWER, "gpus": {"lines": text.splitlines(), "age_s": 0.5, "error": ""}}


def seen(rank: int, ranks: int = 1, **more: Any) -> HostState:
    """A host that trains as the others do, but for what is said."""
    own = [{**ANSWER["ranks"][0], "rank": rank * ranks + n} for n in range(ranks)]
    fields = {name: more.pop(name) for name in ("own_images_per_s", "wait_share", "input_share") if name in more}
    vitals = vitals_of({**ANSWER, "ranks": own})
    trained = tuple(
        dataclasses.replace(r, **{"own_images_per_s": 100.0, "wait_share": 0.2, "input_share": 0.05, **fields})
        for r in vitals.ranks
    )
    given: dict[str, Any] = {"answer_s": 0.003, "ping_s": 0.0002, "rates": rates(vitals_of(ANSWER), vitals_of(LATER))}
    return HostState(
        host=Host(rank=rank, address=f"10.0.0.{rank + 1}", slots=ranks),
        sight=more.pop("sight", Visibility.SEEN),
        vitals=dataclasses.replace(vitals, ranks=trained),
        **{**given, **more},
    )


def frame(*hosts: HostState, jobs: tuple[JobSeen, ...] = ()) -> ClusterSnapshot:
    return ClusterSnapshot(time=1_800_000_000.0, cluster="c", hosts=with_odd(hosts), jobs=jobs)
