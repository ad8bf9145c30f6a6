"""Scheduling time of a full queue: 512 one-GPU jobs for 64 hosts of 8 made-up GPUs, placed by the queue's own code.

    PYTHONPATH=. python benchmarks/scheduling.py

Each job is a record in a folder, as `inv train.run --queue --np 1` leaves it. In their supervisors' place this process
asks for each job's place, the last first, and notes that its slot is taken. The first that looks finds the places of
all. Sockets of the hosts and checks of these are not in it: all hosts do that at once.
"""

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path

from cluster.hosts import Host
from cluster.inventory import ROOT
from cluster.jobs.job import Job, Plan
from cluster.jobs.lock import make_folder
from cluster.jobs.process import this_process
from cluster.jobs.program import Program
from cluster.jobs.record import JobPaths, JobStatus, Turn, now, write_job, write_turn
from cluster.jobs.spec import JobSpec
from cluster.jobs.state import JobState
from cluster.jobs.status import write_status
from cluster.jobs.turns import own_place

RESULT = ROOT / "benchmarks/results/scheduling.json"


def submitted(folder: Path, number: int, hosts: tuple[Host, ...]) -> Job:
    """Write the record of a one-GPU job that waits for any of these hosts."""
    program, slots = Program(words=("python", "cell.py")), {h.address: h.slots for h in hosts}
    job = Job(
        id=f"20261128-120000-cell-{number:04}",
        created=now(),
        ticket=number,
        sequence=number,
        spec=JobSpec(name="cell", program=program, hosts=hosts, queue=True, environment={"SEED": str(number)}),
        plan=Plan(command=program.words, np=1, whole_np=1, hosts=(), profile="ena", versions={}, slots=slots),
    )
    paths = JobPaths(folder / job.id)
    paths.folder.mkdir()
    write_job(paths, job)
    write_status(paths, JobStatus(state=JobState.QUEUED, supervisor=this_process()))
    return job


def placed(folder: Path, jobs: list[Job]) -> tuple[list[float], Counter[str]]:
    """Let each job take its slot, the last first. Return the seconds of each, and the slots taken on each host."""
    took, used = [], Counter[str]()
    for job in reversed(jobs):
        began, paths = time.monotonic(), JobPaths(folder / job.id)
        place = own_place(paths, job.ticket)
        assert place and place.hosts, str(place)
        write_turn(paths, Turn(ticket=job.ticket, place=place, is_taken=True))
        took.append(time.monotonic() - began)
        used.update(h.address for h in place.hosts)
    return took, used


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--gpus", type=int, default=8)
    asked = parser.parse_args()
    hosts = tuple(Host(rank=n, address=f"10.0.{n // 250}.{n % 250 + 1}", slots=asked.gpus) for n in range(asked.hosts))
    with tempfile.TemporaryDirectory() as shared:
        folder = Path(shared) / "jobs"
        make_folder(folder)
        jobs = [submitted(folder, n, hosts) for n in range(1, asked.hosts * asked.gpus + 1)]
        took, used = placed(folder, jobs)
    assert set(used.values()) == {asked.gpus}, used
    result = {
        "hosts": asked.hosts,
        "gpus": asked.gpus,
        "jobs": len(took),
        "all_s": round(sum(took), 2),
        "median_s": round(statistics.median(took), 4),
        "longest_s": round(max(took), 4),
        "machine": platform.machine(),
        "date": now()[:10],
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
