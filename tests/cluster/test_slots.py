"""A rank restricted to its job's slots of a host: its GPUs, and cores in proportion."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.hosts import Host
from cluster.inventory import ROOT
from cluster.jobs.claim import with_slots
from cluster.launch.mpirun import with_variables
from cluster.launch.onhost.slots import cores_of, gpus_of
from tests.cluster.jobs_here import a_job

SHOW = "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'), len(os.sched_getaffinity(0)))"


@pytest.mark.parametrize("of", [1, 2, 3, 8])
@pytest.mark.parametrize("cores", [1, 2, 7, 96])
def test_cores_are_shared_out_in_proportion(of: int, cores: int) -> None:
    """Every slot has some, no core has two slots where there is one for each, and none is left."""
    all_of_them = list(range(cores))
    runs = [cores_of([slot], of, all_of_them) for slot in range(of)]
    assert {*all_of_them} == {core for run in runs for core in run}
    assert all(runs)
    if cores >= of:
        assert cores == sum(map(len, runs))
        assert max(map(len, runs)) - min(map(len, runs)) <= 1


def test_a_slot_is_a_gpu() -> None:
    """As long as there are as many; more slots share them."""
    assert "2,5" == gpus_of([2, 5], 8)
    assert "0,1" == gpus_of([4, 5], 4)
    assert "3" == gpus_of([3, 7], 4)
    assert "7" == gpus_of([7], 0), "made-up ones, where there is no driver"


@pytest.mark.parametrize(
    ("told", "said"), [({"DLAMI_SLOTS": "3/4"}, "3"), ({}, "None"), ({"CUDA_VISIBLE_DEVICES": "1"}, "1")]
)
def test_a_rank_sees_its_own(told: dict[str, str], said: str) -> None:
    """One without slots sees all; what the operator has set stays."""
    words = [sys.executable, str(ROOT / "cluster/launch/onhost/slots.py"), sys.executable, "-c", SHOW]
    environment = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"} | {"DLAMI_SLOTS": ""} | told
    if "CUDA_VISIBLE_DEVICES" in told:
        environment["DLAMI_SLOTS"] = "0/4"
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=True)
    assert said == done.stdout.split()[0]
    cores = len(os.sched_getaffinity(0))
    assert int(done.stdout.split()[1]) == (cores if not environment["DLAMI_SLOTS"] else max(1, cores // 4))


def test_ranks_are_told_what_the_host_has_given(tmp_path: Path) -> None:
    """Slots and port of a shared host; a whole host's are recorded, its ranks see all."""
    host = Host(rank=0, address="10.0.0.1", slots=2)
    words = ("mpirun", "-x", "MASTER_PORT=1", "-x", "DLAMI_SLOTS=", "env", "-x", "MASTER_PORT=2")
    job = a_job("", "x", hosts=(host,), mpirun=words, slots={"10.0.0.1": 8}, exclusive=False)
    given = with_slots(job, {host: {"slots": [2, 5], "port": 20002}})
    assert {"10.0.0.1": (2, 5)} == given.plan.claimed
    assert ("mpirun", "-x", "MASTER_PORT=20002", "-x", "DLAMI_SLOTS=2,5/8", *words[5:]) == given.plan.mpirun
    whole = with_slots(a_job("", "x", hosts=(host,), mpirun=words), {host: {"slots": [], "port": 0}})
    assert ({"10.0.0.1": (0, 1)}, words) == (whole.plan.claimed, whole.plan.mpirun)
    assert ["a", "b"] == with_variables(["a", "b"], {"X": 1})
