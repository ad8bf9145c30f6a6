"""The PyTorch trainer as a job on real hosts, in an interpreter that is not the project's."""

import json
from pathlib import Path

from lab.record import Lab
from tests.conftest import Inv

SMALL = (
    *("--model", "resnet18", "--synthetic", "--image-size", 32, "--batch-size", 4, "--threads", 1),
    *("--num-batches", 4, "--display-every", 1),
)


def test_ranks_on_two_hosts_train_beat_and_save(inv: Inv, lab: Lab, torch_python: Path) -> None:
    """They find each other over the hosts' own network; steps are counted, records and the checkpoint are the job's."""
    start = ("train.resnet50-torch", "--hosts", "0,1", "--np", 3, "--name", "torch", "--unchecked", "--no-heal")
    nowhere = inv(*start, "--python", "/nowhere/python", "--", *SMALL)
    assert 2 == nowhere.returncode
    assert nowhere.stderr.startswith("/nowhere/python cannot be started on the master (")

    done = inv(*start, "--python", torch_python, "--", *SMALL)
    assert 0 == done.returncode, done.stdout + done.stderr
    assert "DDP over gloo size: 3" in done.stdout and "Finished in" in done.stdout
    shown = json.loads(inv("jobs.show", "torch", "--json").stdout)
    folder = lab.shared / "jobs" / shown["id"]
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [(step, 3) for step in range(4)] == [(r["step"], r["ranks"]) for r in records]
    assert (folder / "checkpoints/step-00000004.json").exists()
    assert [(1, 4)] == [(a["number"], a["step"]) for a in shown["attempts"]], shown["attempts"]
    assert str(torch_python) == shown["command"][0]


# Every rank steps; at the sixth one rank goes to another collective than the rest. Nothing in it is ours.
DIVERGES = """\
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
numbers = torch.ones(100)
def elsewhere():
    dist.barrier()
for step in range(100_000):
    if step < 6 and dist.get_rank() == 0:
        print("step", step, flush=True)
    if step == 6 and dist.get_rank() == 2:
        elsewhere()
    dist.all_reduce(numbers)
    time.sleep(0.1)
"""


def test_a_deadlock_of_a_program_without_heartbeats_is_explained(inv: Inv, lab: Lab, torch_python: Path) -> None:
    """The rank in another collective is named with its line, and the attempt ends as a hang without being told when."""
    start = ("train.run", "--hosts", "0,1", "--np", 3, "--name", "diverges", "--unchecked", "--no-heal", "--no-code")
    done = inv(*start, "--", torch_python, "-c", DIVERGES)

    shown = json.loads(inv("jobs.show", "diverges", "--json").stdout)
    last = shown["attempts"][-1]
    assert done.returncode == 1
    assert (last["what"], last["rank"]) == ("hang", 2), done.stdout + done.stderr
    assert "diverged collectives" in last["text"]
    assert "rank 2 in barrier" in last["text"]
    folder = lab.shared / "jobs" / shown["id"] / "logs/attempt-1"
    assert "the program stands still" in (folder / "console.log").read_text()
    assert "elsewhere" in (folder / "stacks.txt").read_text()
