"""Upload of a job's results to S3, started by its supervisor: `python -m cluster.results.send JOBFOLDER`."""

import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Any

from cluster.errors import ClusterError, ConfigError
from cluster.hosts import Host
from cluster.inventory import results_url
from cluster.jobs.lock import locked
from cluster.jobs.record import Job, JobPaths, now, read_job
from cluster.jobs.records import read_attempts
from cluster.jobs.results import Results, write_results
from cluster.jobs.status import read_status
from cluster.results.gathered import gather
from cluster.ssh.program import program
from cluster.ssh.result import Result
from cluster.stage.stage import Staged, request_of, staged

OWN_DISK = Path("/var/tmp")
LIMIT_S, SLOWEST = 900.0, 1e6  # seconds, and further time at this many bytes per second
_TURN_S, _LOOK_S = 86400.0, 1.0  # another process of the same job may be uploading for hours
_S3 = "cluster.stage.onhost.s3"


def send(paths: JobPaths) -> Results:
    """Upload a job's results and record the outcome in its folder. Raises ConfigError if the job has no results URL."""
    job = read_job(paths)
    if not job.plan.results:
        raise ConfigError(f"{job.id} was started without results in cluster.toml, so there is no place for them")
    with locked(paths.folder, _TURN_S, pause_s=_LOOK_S):
        over = [a.number for a in read_attempts(paths) if a.is_over]
        attempt = max(over, default=read_status(paths).attempt)
        url, error, said = results_url(job.plan.results, job.id), "", dict[str, Any]()
        try:
            done = _sent(paths, job, url)
            error, said = done.error or "", dict(done.said)
        except Exception as e:  # any failure is recorded
            error = " ".join(str(e).split())[:300] or type(e).__name__
        results = Results(
            url=url,
            time=now(),
            attempt=attempt,
            files=int(said.get("files", 0)) + int(said.get("skipped", 0)),
            bytes=int(said.get("bytes", 0)),
            error=error,
        )
        write_results(paths.folder, results)
    return results


def _sent(paths: JobPaths, job: Job, url: str) -> Staged:
    """Gather the results, and upload them with the S3 program of `inv stage`."""
    prefix = f"dlami-results-{job.id}-"
    for left in OWN_DISK.glob(f"{prefix}*"):  # left by a killed process
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=OWN_DISK) as folder:
        gather(paths, Path(folder))
        size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
        limit_s = LIMIT_S + size / SLOWEST
        request = request_of(folder, url, upload=True)
        sent = program(_S3, {**vars(request), "environment": {}}, python=sys.executable, is_isolated=False)
        began = time.monotonic()
        words = ["sh", "-c", sent.command({"prefix": request.prefix, "part": (0, 1)})]
        try:
            done = subprocess.run(words, input=sent.stdin, capture_output=True, timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise ClusterError(
                f"{size / 1e6:,.1f} MB were not all there after {limit_s:,.0f} s, and were given up; what is there is "
                f"not moved again: 'inv jobs.results {job.id}'"
            ) from None
    here = Host(rank=0, address="localhost", slots=1)
    return staged(
        Result(
            host=here,
            exit_code=done.returncode,
            stdout=done.stdout,
            stderr=done.stderr,
            seconds=time.monotonic() - began,
        )
    )


def main(folder: str) -> int:
    """Upload the results, print the outcome, and return the exit code."""
    signal.signal(signal.SIGTERM, _end)
    try:
        results = send(JobPaths(Path(folder)))
    except ClusterError as e:
        print(e, file=sys.stderr)
        return e.exit_code
    print(f"results {results}", flush=True)
    return 1 if results.error else 0


def _end(number: int, frame: FrameType | None) -> None:
    """Exit on SIGTERM by SystemExit, so that the gathered files are removed."""
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
