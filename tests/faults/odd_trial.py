"""One cell of the second grid tried. What it said is kept to be read: only a reader sees a wrong culprit or an untruth.

`python -m tests.faults.trial --grid odd --seed 1 --count 60 --keep DIR` (as root) draws them. The promises are those of
`judge`, as far as a program can judge them: an end in time, no traceback, 0 only for what was done, nothing torn,
nothing left, and the same command is well once the host is as it was.
"""

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from cluster.ssh import connections
from lab import lab as labs
from tests import fake_s3
from tests.faults import odd
from tests.faults.bench import ENDED, TARGET, Bench, wait
from tests.faults.breaking import inside
from tests.faults.judge import BYSTANDER, LEFTOVER, Trial
from tests.faults.odd import OddCell, Oddity, Program

LIMIT_S = 240.0
MANY = 2000
SAID = "echo begun; sleep 6; echo done"
MOVED = f"{TARGET}-moved"


class OddTrial(Trial):
    """What came of a cell of the second grid."""

    cell: OddCell  # type: ignore[assignment]


def attempt(bench: Bench, cell: OddCell) -> OddTrial:
    """Try one cell; the lab is as it was afterwards. Raises NothingThere if a host could not be made odd."""
    with fake_s3.serving(bench.lab.bridge_address) if cell.command == "stage" else contextlib.nullcontext("") as url:
        return _attempt(bench, cell, prepare(bench, cell, url))


def _attempt(bench: Bench, cell: OddCell, words: tuple[str, ...]) -> OddTrial:
    trial = OddTrial(cell)
    undo: list[Callable[[], object]] = []
    before = _operator(bench, cell)
    try:
        if cell.moment == "before":
            undo += _strike(bench, cell)
        began = time.monotonic()
        process = bench.start(*words, before=before)
        try:
            if cell.moment == "midway":
                wait(lambda: process.poll() is not None, 2.5)
                undo += _strike(bench, cell)
            program = odd.PROGRAMS.get(cell.odd)
            if program and program.then == "stop":
                wait(lambda: "begun" in bench.said() or process.poll() is not None, 60)
                trial.story += _stopped_beside(bench)
            trial.code = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            trial.broken.append("did not end in time")
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        trial.seconds, trial.said = time.monotonic() - began, bench.said()
        trial.job = (bench.jobs() or [""])[-1]
        _while_odd(bench, trial)
    finally:
        for back in reversed(undo):
            back()
        labs.heal(bench.lab, bench.lab.hosts)
        connections.disconnect()
    _afterwards(bench, trial, words)
    return trial


def prepare(bench: Bench, cell: OddCell, url: str) -> tuple[str, ...]:
    """The words of a cell's command, with what it moves, ends or lists in its place; url: S3's, for `stage`."""
    if cell.odd in odd.PROGRAMS and cell.family == "programs":
        program = odd.PROGRAMS[cell.odd]
        heals = ("--no-heal",) if program.state == "failed" else ()
        return ("train.run", "--np", str(program.np), *heals, "--name", "odd", "--", "bash", "-c", program.line)
    if cell.odd in odd.HUGE:
        if "jobs on record" in cell.odd:
            _many_jobs(bench)
        if "processes" in cell.odd:
            bench.ask("train.run", "--np", "1", "--unchecked", "--name", "odd", "--", "true")
            left = LEFTOVER.format(job=bench.jobs()[-1]).strip()
            inside(bench.lab, bench.lab.hosts[1], f"for i in $(seq {MANY}); do {left} done")
        return odd.HUGE[cell.odd]
    source = bench.lab.shared / "moved"
    shutil.rmtree(source, ignore_errors=True)
    shutil.rmtree(bench.folder / "fetched", ignore_errors=True)
    bench.everywhere(f"rm -rf {MOVED}*")
    source.mkdir()
    size = 3
    if cell.moment == "midway":
        size = 30
        for host in bench.lab.hosts:
            labs.slow(bench.lab, host, mbit=30, delay_ms=None)
    small = f"head -c {size}m /dev/urandom >large; for n in $(seq 50); do echo new $n >small-$n; done; mkdir sub; echo x >sub/x"
    text = odd.DATA[cell.odd] if cell.family == "data" else small
    if cell.command == "fetch" or (cell.command == "stage" and cell.family == "data"):
        inside(bench.lab, bench.lab.hosts[_from(cell)], f"mkdir -p {MOVED}; cd {MOVED}; bash -c {shlex.quote(text)}")
    elif cell.command in ("copy", "stage"):
        subprocess.run(["bash", "-c", text], cwd=source, check=False, timeout=120)
    if cell.command == "stage":
        _into_s3(bench, source, url)
    if cell.command == "kill":
        bench.ask("train.run", "--np", "1", "--unchecked", "--name", "odd", "--", "true")
        assert bench.jobs(), bench.said()
        for host in bench.lab.hosts:
            inside(bench.lab, host, LEFTOVER.format(job=bench.jobs()[-1]) + BYSTANDER)
    up = ("--upload", "--hosts", "1", MOVED, "s3://odd/up")
    staged = up if cell.family == "data" else ("s3://odd/moved", f"{MOVED}/moved")
    return {
        "run": ("run", "--timeout", "60", "--", SAID),
        "copy": ("copy", str(source), f"{MOVED}/"),
        "fetch": ("fetch", MOVED, f"{bench.folder}/fetched", "--hosts", str(_from(cell))),
        "stage": ("stage", "--endpoint", url, *staged),
        "health": ("health",),
        "kill": ("kill", "--yes"),
        "jobs.list": ("jobs.list", "--all"),
        "program": ("train.run", "--attempts-per-hour", "2", "--name", "odd", "--", "bash", "-c", SAID),
    }[cell.command]


def _into_s3(bench: Bench, source: Path, url: str) -> None:
    """A bucket with the folder's files, and keys for it on every host."""
    import boto3

    keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
    client = boto3.client("s3", endpoint_url=url, region_name="us-east-1", **keys)
    client.create_bucket(Bucket="odd")
    for path in source.rglob("*"):
        if path.is_file():
            client.put_object(Bucket="odd", Key=f"moved/{path.relative_to(source)}", Body=path.read_bytes())
    text = "\\n".join(["[default]", *(f"{name}={value}" for name, value in keys.items()), "region=us-east-1", ""])
    bench.everywhere(f"mkdir -p /root/.aws; printf '{text}' >/root/.aws/credentials")


def _from(cell: OddCell) -> int:
    """The host that `fetch` is to bring something from."""
    return cell.rank if cell.rank >= 0 else 1


def _many_jobs(bench: Bench) -> None:
    """A job that ended, and its record again and again under other names."""
    bench.ask("train.run", "--np", "1", "--unchecked", "--name", "odd", "--", "true")
    job = bench.jobs()[-1]
    folder = bench.lab.shared / "jobs"
    for n in range(MANY):
        name = f"20250101-{n:06}-odd-{n:04x}"
        (folder / name).mkdir()
        for file in (folder / job).iterdir():
            if file.suffix == ".json":
                (folder / name / file.name).write_bytes(file.read_bytes().replace(job.encode(), name.encode()))
                shutil.copystat(file, folder / name / file.name)
            elif file.is_file():
                (folder / name / file.name).hardlink_to(file)


def _operator(bench: Bench, cell: OddCell) -> str:
    """Shell text that makes the operator odd."""
    if cell.family != "operator":
        return ""
    checkout = "export PYTHONPATH=$PWD; "
    return f"export ODD={bench.folder}; {checkout}{odd.OPERATOR[cell.odd]}"


def _strike(bench: Bench, cell: OddCell) -> list[Callable[[], object]]:
    """Make the cell's hosts odd; how to take it back."""
    kinds = {name: one for family in odd.ON_HOSTS.values() for name, one in family.items()}
    undo: list[Callable[[], object]] = []
    for name, rank in ((cell.odd, cell.rank), (cell.second, 2)):
        if name not in kinds or rank < 0:
            continue
        oddity: Oddity = kinds[name]
        host, other = bench.lab.hosts[rank], bench.lab.hosts[1 if rank == 2 else 2]
        values = f"OTHER={other.address}; OTHER_NAME={other.name}; export HOME=/root"
        inside(bench.lab, host, f"{values}; set -e; {oddity.do}", check=True)
        undo.append(lambda h=host, v=values, o=oddity: inside(bench.lab, h, f"{v}; {o.undo}"))
    return undo


def _stopped_beside(bench: Bench) -> str:
    """Stop the newest job by a command beside the one that follows it."""
    (bench.folder / "beside").mkdir(exist_ok=True)
    beside = Bench.__new__(Bench)
    beside.lab, beside.folder = bench.lab, bench.folder / "beside"
    code, said = beside.ask("jobs.stop", "last", limit_s=120)
    return f"jobs.stop: exit {code}\n{said}\n"


def _while_odd(bench: Bench, trial: OddTrial) -> None:
    cell, said = trial.cell, trial.said
    if "Traceback" in said and cell.family != "programs":
        trial.broken.append("traceback: " + said.strip().splitlines()[-1][:120])
    if trial.code not in (0, None) and not said.strip() and cell.odd != "stderr is closed":
        trial.broken.append("failed without a word")
    if cell.rank >= 0 and trial.code not in (0, None):
        named = [bench.lab.hosts[r].address for r in {cell.rank, *((2,) if cell.second else ())}]
        if not any(address in said for address in named):
            trial.broken.append(f"none of {named} is named")
    if trial.code == 0:
        trial.broken += _not_done(bench, cell, said)


def _not_done(bench: Bench, cell: OddCell, said: str) -> list[str]:
    """What a command that ended with 0 has not done."""
    if cell.command == "run" and cell.family not in ("huge",):
        answered = sum(map(int, re.findall(r"\((\d+)\)\n(?:  .*\n)*?  begun\n(?:  .*\n)*?  done", said)))
        return [] if answered == 3 else [f"exit 0, and {answered} of 3 answered"]
    if cell.command == "kill" and cell.family != "huge":
        left = {h.address: found for h in bench.lab.hosts if (found := bench.left(h))}
        return [f"exit 0, but these run: {left}"[:300]] if left else []
    if cell.command in odd.MOVING and cell.family != "data":
        return [f"exit 0, but {one}" for one in _differing(bench, cell)]
    return []


def _tree(folder: str) -> str:
    return f"cd {folder} && find . -type f -exec sha256sum {{}} + | sort"


def _differing(bench: Bench, cell: OddCell) -> list[str]:
    """Whose copy is not as its source."""
    if cell.command == "fetch":
        wanted = inside(bench.lab, bench.lab.hosts[_from(cell)], _tree(MOVED))
        here = next(iter((bench.folder / "fetched").glob(f"*/{MOVED.rpartition('/')[2]}")), bench.folder / "none")
        got = {"here": subprocess.run(["sh", "-c", _tree(str(here))], capture_output=True, text=True).stdout}
    else:
        wanted = subprocess.run(
            ["sh", "-c", _tree(str(bench.lab.shared / "moved"))], capture_output=True, text=True
        ).stdout
        got = {h.address: out for h, out in bench.everywhere(_tree(f"{MOVED}/moved")).items()}
    return [f"{who} differs" for who, out in got.items() if out != wanted]


def _afterwards(bench: Bench, trial: OddTrial, words: tuple[str, ...]) -> None:
    """What must hold once all is as it was."""
    cell = trial.cell
    _job_afterwards(bench, trial)
    if cell.family not in ("programs", "data", "huge"):
        code, said = bench.ask(*words)
        if code != 0:
            trial.broken.append(f"again, without the oddity: exit {code}: {said.strip()[-300:]}")
        else:
            trial.broken += [f"again: {one}" for one in _not_done(bench, cell, said)]
    for question in (("jobs.list", "--all"), ("jobs.show", "last"), ("jobs.logs", "last")):
        if bench.jobs():
            code, said = bench.ask(*question)
            trial.story += f"{question}: exit {code}\n{said[:1500]}\n...\n{said[-1500:]}\n"
            if "Traceback" in said and cell.family != "programs":
                trial.broken.append(f"{question[0]} ends in a traceback")
    left = {h.address: found for h in bench.lab.hosts if (found := bench.left(h))}
    if left and cell.command != "kill":
        trial.broken.append(f"left: {left}"[:400])


def _job_afterwards(bench: Bench, trial: OddTrial) -> None:
    job, program = trial.job, odd.PROGRAMS.get(trial.cell.odd, Program(""))
    if not job or trial.cell.family == "huge":
        return
    has_ended = wait(lambda: bench.recorded(job).get("state") in (*ENDED, None), 90)
    record = bench.recorded(job)
    trial.story += f"record: {record}\n"
    if not has_ended:
        trial.broken.append(f"{job} is {record.get('state')} long afterwards")
        bench.ask("jobs.stop", job)
    if trial.cell.family == "programs" and record:
        if record.get("state") != program.state:
            trial.broken.append(f"{job} is {record.get('state')}, not {program.state}")
        if program.cause and not re.search(program.cause, str(record.get("cause"))):
            trial.broken.append(f"its cause is {record.get('cause')!r}")
    for log in (bench.lab.shared / "jobs" / job).glob("logs/*/supervisor.log"):
        if "Traceback" in (text := log.read_text(errors="replace")):
            trial.broken.append("its supervisor ended in a traceback: " + text.strip().splitlines()[-1][:150])
