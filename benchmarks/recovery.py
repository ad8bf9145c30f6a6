"""From a failure to the next optimiser step, itemised: a lab of four hosts, ResNet-18, medians of five.

    PYTHONPATH=. python benchmarks/recovery.py                # every row, as root: it makes labs of its own
    PYTHONPATH=. python benchmarks/recovery.py --row spare    # one of them; the others keep what they have
    PYTHONPATH=. python benchmarks/recovery.py --times 1

Each row: a training runs, something is done to a host or a rank at a known time, and `attempts.json` says when it
was noticed, when nothing of the attempt was left, when the next hosts were chosen, when mpirun began and when the
first step was done; and that the right host was named. One lab per measurement: a host that failed before is left
out by the next job. `alarms` is no measurement: 200 random schedules, and how many were taken for a hang.
"""

import argparse
import itertools
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.inventory import ROOT
from lab import lab as labs
from lab.record import Lab
from cluster.ssh import connections
from tests import dead_server
from tests.faults.breaking import LOOPS

if TYPE_CHECKING:
    from cfn.aws import Aws
    from cluster.inventory import Cluster
    from lab.aws.driver import LabDriver

sys.path.insert(0, str(Path(__file__).parent))
from rounds import RESULTS, write

LAB = "brec"
TRAINING = (
    *("--model", "resnet18", "--image-size", "32", "--batch-size", "4", "--classes", "10", "--synthetic"),
    *("--threads", "1", "--num-batches", "1000000", "--display-every", "5", "--checkpoint-every", "20"),
)
START_S, HEAL_S = 240.0, 400.0
FOLDER_AWAY_S = 60.0
RANK = r"pgrep -nf '^[^ ]*python -m trainer\.resnet50'"
PARTS = ("noticed", "cleared", "gate", "start")


@dataclass(frozen=True)
class Case:
    """One event, and how soon the next step is to be there."""

    what: str
    do: Callable[[Lab], None]
    goal_s: float
    spares: int = 0
    options: tuple[str, ...] = ()
    part: str = "all"  # what the goal is for
    host: int | None = 2  # that is to be named


def on_host(lab: Lab, rank: int, script: str) -> None:
    """A shell script on a lab host."""
    words = [sys.executable, "-m", "invoke", "lab.ssh", str(rank), "--name", lab.name, "--", script]
    subprocess.run(words, cwd=ROOT, check=True, timeout=60, capture_output=True)


def crash(lab: Lab) -> None:
    """The third host loses its power."""
    labs.crash(lab, lab.hosts[2])


def master_away(lab: Lab) -> None:
    """The master loses its power and is booted again; the time counts from its boot."""
    labs.crash(lab, lab.hosts[0])
    labs.heal(lab, lab.hosts[:1])


def stop_a_rank(lab: Lab) -> None:
    """A rank stands still."""
    stop_a_rank_on(lab, 2)


def stop_a_rank_on(lab: Lab, host: int) -> None:
    """The one on this host stands still."""
    on_host(lab, host, f"kill -STOP $({RANK})")


def pull_a_cable(lab: Lab) -> None:
    """The third host lives, and nobody hears it; what was sent to it stays unacknowledged."""
    labs.cut(lab, lab.hosts[2])


def loop_a_rank(lab: Lab) -> None:
    """A rank is in an endless loop of its own Python."""
    on_host(lab, 2, f"kill -USR2 $({RANK})")


def go_while_sent_to(lab: Lab) -> None:
    """The third host is not heard any more, and mpirun has a word for it at once: keepalive waits for its receipt."""
    labs.cut(lab, lab.hosts[2])
    on_host(lab, 0, "kill -CONT $(pgrep -x mpirun)")  # which it passes on to its daemons


def folder_away(lab: Lab) -> None:
    """The shared folder of the master does not answer; after a minute it is there again."""
    on_host(lab, 0, f"/usr/bin/python3 -c {shlex.quote(dead_server.PROGRAM)}")
    mend = "kill -9 $(cat /run/dead-server); umount -l /shared"
    threading.Timer(FOLDER_AWAY_S, on_host, (lab, 0, mend)).start()


HANG_S = 30 + 3  # without a step, or ten steps if these take longer; and a look at the hosts every 3 s
CASES = {
    "spare": Case("a host dies, a spare is ready", crash, 45, spares=1),
    "fewer": Case("a host dies, the job goes on with one less", crash, 45, options=("--min-np", "3")),
    "stopped": Case("a rank is stopped", stop_a_rank, 30 + 45),
    "cable": Case("a cable is pulled while data are under way", pull_a_cable, 45, options=("--min-np", "3")),
    "unacknowledged": Case(
        "a host goes while mpirun sends to it, a spare is ready", go_while_sent_to, 15, spares=1, part="noticed"
    ),
    "loop": Case("a rank is in an endless loop", loop_a_rank, HANG_S, part="noticed"),
    "folder": Case("the shared folder does not answer for a minute", folder_away, HANG_S, part="noticed", host=None),
    "master": Case("the master dies and is booted again", master_away, 60, host=None),
}
REPLACED, ALARMS = "replaced", "alarms"
LAUNCH = "launch"  # a part of that row: from AWS's launch of the successor until its first boot has ended


def measured(case: Case) -> dict[str, float]:
    """Seconds of each part of one healing, and in all."""
    lab = labs.up(LAB, 4, 1, spares=case.spares, may_mount=True)
    try:
        inv = [sys.executable, "-m", "invoke"]
        environment = {**os.environ, "CLUSTER": f"lab:{LAB}"}
        (lab.shared / "loops").mkdir()
        (lab.shared / "loops/sitecustomize.py").write_text(LOOPS)
        options = ("--detach", "--unchecked", "--hosts", "0-3", "--env", "PYTHONPATH=/shared/loops", *case.options)
        words = [*inv, "train.resnet50", *options, "--", *TRAINING]
        subprocess.run(words, cwd=ROOT, env=environment, check=True, timeout=START_S, capture_output=True)
        folder = next((lab.shared / "jobs").glob("*resnet50*"))
        before = trains(folder)
        began = time.time()
        case.do(lab)
        failed, healed = healed_after(folder, before)
        named = lab.hosts[case.host].address if case.host is not None else failed["host"]
        assert named == failed["host"], f"{named} was to be named: {failed['text']}"
        return parts(began, failed, healed)
    finally:
        connections.disconnect()
        labs.down(LAB)


_ROUNDS = itertools.count(1)  # the fake account of one process remembers the roles of the round before


def measured_by_replacement() -> dict[str, float]:
    """The same where a stack's dead host is replaced by its master's role, on the fake AWS, whose hosts really boot."""
    from cfn.aws import Aws
    from dlami.fake_aws import LAB_SCALE
    from cfn.template.design import TAG
    from lab import network
    from lab.aws import start
    from lab.aws.driver import LabDriver, empty_lab

    keys = {"AWS_ACCESS_KEY_ID": "fake", "AWS_SECRET_ACCESS_KEY": "fake", "AWS_DEFAULT_REGION": "us-east-1"}
    with labs.locked():
        lab = empty_lab(LAB, network.free_network(), slots=1)
    try:
        with (
            start(host=lab.bridge_address, scale=LAB_SCALE, nodes="none", tag_prefix=TAG) as fake,
            LabDriver(lab, fake.url, slots=1) as driver,
            tempfile.TemporaryDirectory() as kept,
        ):
            os.environ.update(keys, AWS_ENDPOINT_URL=fake.url)
            account = Aws("us-east-1")
            cluster = stack_of_four(account, driver, fake.url, kept)
            words = [sys.executable, "-m", "invoke", "train.resnet50", "--detach", "--unchecked", "--", *TRAINING]
            environment = {**os.environ, "CLUSTER": kept}
            subprocess.run(words, cwd=ROOT, env=environment, check=True, timeout=START_S, capture_output=True)
            folder = next((driver.lab.shared / "jobs").glob("*resnet50*"))
            before = trains(folder)
            dead, began = cluster.hosts[2].address, time.time()
            ready: list[float] = []
            look = threading.Thread(target=note_when_ready, args=(account, cluster.name, dead, ready), daemon=True)
            labs.crash(driver.lab, next(h for h in driver.hosts.values() if h.address == dead))
            look.start()
            failed, healed = healed_after(folder, before)
            assert dead == failed["host"], f"{dead} was to be named: {failed['text']}"
            look.join(60)
            found = parts(began, failed, healed)
            launches = [a for g in fake.world.groups.values() for a in g.activities if "Launching" in a.description]
            launch_s = ready[0] - max(a.start for a in launches).timestamp()
            return {**found, "gate": found["gate"] - launch_s, LAUNCH: launch_s}
    finally:
        connections.disconnect()
        labs.down(LAB)


def stack_of_four(account: "Aws", driver: "LabDriver", url: str, kept: str) -> "Cluster":
    """Its hosts by a hostfile in this folder; its master has the role that replaces."""
    from cfn import create, hostfile, plan
    from cluster.clusterfile import text
    from dlami.fake_aws import cluster_values
    from cluster import written
    from cluster.inventory import load_cluster
    from cluster.ssh.fanout import Executor

    path = Path(kept) / "cluster.toml"
    text.write(path, text.render({**cluster_values(driver.lab, workers=3), "name": f"recovery{next(_ROUNDS)}"}))
    file = text.read(path)
    create.create(account, plan.make(account, file), lambda _: None)
    written.write(hostfile.targets(account, path, file), force=False)
    cluster = load_cluster(kept)
    role = f"[default]\nendpoint_url = {url}\naws_access_key_id = fake\naws_secret_access_key = fake\n"
    with Executor(cluster) as reach:
        reach.run([cluster.master], "mkdir -p ~/.aws && cat >~/.aws/config", stdin=role.encode()).check()
    return cluster


def note_when_ready(account: "Aws", name: str, dead: str, ready: list[float]) -> None:
    """When all hosts can be used, and the dead one is none of them any more."""
    from cfn import hosts, stack

    while not ready:
        time.sleep(0.3)
        usable = {m.address for m in hosts.hosts(account, stack.outputs(account, name))}
        if len(usable) == 4 and dead not in usable:
            ready.append(time.time())


def alarms(count: int = 200) -> int:
    """Of so many random schedules of compilation, evaluation, saving, slow hosts, a busy machine: taken for hangs."""
    from tests.schedules import Training

    drawn = [Training(seed, ranks=2 + seed % 7) for seed in range(count)]
    return sum(training.watched(max(training.now)) is not None for training in drawn)


def trains(folder: Path) -> int:
    """How many attempts there are once the training goes on."""
    until(lambda: (step := attempts(folder)[0].get("first_step_at")) is not None and step > 0, START_S)
    time.sleep(20)  # some steps, a checkpoint
    return len(attempts(folder))


def healed_after(folder: Path, before: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The attempt that failed, and the next one, which trains."""
    until(lambda: len(attempts(folder)) > before and attempts(folder)[before].get("first_step_at") is not None, HEAL_S)
    failed, healed = attempts(folder)[before - 1 : before + 1]
    return failed, healed


def attempts(folder: Path) -> list[dict[str, Any]]:
    """What is known of the job's attempts."""
    try:
        return list(json.loads((folder / "attempts.json").read_text())["attempts"]) or [{}]
    except (OSError, ValueError):
        return [{}]


def until(condition: Callable[[], bool], within_s: float) -> None:
    """Wait for it. Raises TimeoutError."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {within_s:g} s")
        time.sleep(0.2)


def parts(began: float, failed: dict[str, Any], healed: dict[str, Any]) -> dict[str, float]:
    """Where the time from the event to the next attempt's first step went."""
    noticed, cleared = failed["noticed"] - began, failed["cleared"] - failed["noticed"]
    whole, start = healed["first_step_at"] - began, healed["first_step_at"] - healed["started"]
    return {
        "noticed": noticed,
        "cleared": cleared,
        "gate": whole - noticed - cleared - start,
        "start": start,
        "all": whole,
    }


def rows(name: str, what: str, runs: list[dict[str, float]], of: str, goal_s: float) -> list[dict[str, Any]]:
    """The row of the whole and one for each part; the one that has a goal with its ratio to it."""
    found = []
    for part in ("all", *(p for p in (*PARTS, LAUNCH) if p in runs[0])):
        values = [r[part] for r in runs]
        median, has_goal = statistics.median(values), part == of
        found.append(
            {
                "what": f"{name}: {what}, to the next step" if part == "all" else f"{name}: of that {part}",
                "value": round(median, 2),
                "unit": "s",
                "against": f"the limit, {goal_s:g} s" if has_goal else "",
                "ratio": round(median / goal_s, 3) if has_goal else None,
                "goal": 1.0 if has_goal else None,
                "runs": len(values),
                "spread": [round(min(values), 2), round(max(values), 2)],
            }
        )
    return found


def measured_rows(name: str, times: int) -> list[dict[str, Any]]:
    """All rows of one event."""
    if name == ALARMS:
        what, count = "alarms: false ones in 200 random schedules", alarms()
        row = {"what": what, "value": count, "unit": "alarms", "against": "", "ratio": None, "goal": 0}
        return [{**row, "runs": 200, "spread": [count, count]}]
    if name == REPLACED:
        runs = [measured_by_replacement() for _ in range(times)]
        launch = statistics.median(r[LAUNCH] for r in runs)
        return rows(name, "a host dies and is replaced on the fake AWS", runs, "all", round(30 + launch, 1))
    case = CASES[name]
    return rows(name, case.what, [measured(case) for _ in range(times)], case.part, case.goal_s)


def main() -> None:
    """Measure, and write results/recovery.json; rows that were not asked for stay as they are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--row", choices=(*CASES, REPLACED, ALARMS), help="only this one")
    parser.add_argument("--times", type=int, default=5)
    asked = parser.parse_args()
    kept = RESULTS / "recovery.json"
    results = json.loads(kept.read_text()) if kept.exists() else []
    for name in [asked.row] if asked.row else (*CASES, REPLACED, ALARMS):
        results = [r for r in results if not r["what"].startswith(f"{name}: ")] + measured_rows(name, asked.times)
        write("recovery", results)


if __name__ == "__main__":
    main()
