"""Programs that nobody here wrote, unchanged, on two lab hosts: C, mpi4py, a shell's; Horovod's own example."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cluster.inventory import Cluster
from cluster.ssh.fanout import Executor
from lab.record import Lab
from tests.cluster.others_programs import ACCELERATE_LAUNCH, example
from tests.cluster.own_programs import Own

DDP = """\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
model(torch.ones(3, 4)).sum().backward()
print(dist.get_rank(), "of", dist.get_world_size(), flush=True)
"""


def test_programs_of_others_run_unchanged(own: Own, mpi4py: str, lab: Lab, cluster: Cluster, reach: Executor) -> None:
    """A C program compiled there, mpi4py's own tests of allreduce, and a shell script of the distribution."""
    reach.run([cluster.master], f"mpicc -o /shared/hello {mpi4py}/source/demo/helloworld.c").check()
    tests = ["python", f"{mpi4py}/source/test/main.py", "-v", "-i", "test_cco_obj", "-k", "testAllreduce"]
    jobs: list[tuple[Any, ...]] = [
        ("--hosts", "0-1", "--", "/shared/hello"),
        ("--hosts", "2-3", "--env", f"PYTHONPATH={mpi4py}/lib", "--", *tests),
        ("--hosts", "0-1", "--per", "node", "--", "ldd", "/usr/bin/mpirun"),
    ]
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda words: own("train.run", "--unchecked", *words), jobs[:2])
    third = own("train.run", "--unchecked", *jobs[2])

    assert (0, 0, 0) == (first.returncode, second.returncode, third.returncode), second.stdout + second.stderr
    names = [f"{lab.hosts[n // 2].name}" for n in range(4)]
    assert [f"process {n} of 4 on {names[n]}" for n in range(4)] == sorted(re.findall(r"process \d of 4 on [\w-]+", first.stdout))  # fmt: skip
    said = second.stdout + second.stderr
    assert 4 == len(re.findall(r"\bOK\b", said)), said
    assert "testAllreduce" in said
    assert 2 == third.stdout.count("libopen-rte.so.40 =>")


@pytest.mark.long
def test_horovod_s_own_example(own: Own, lab: Lab) -> None:
    """Its TensorFlow 2 benchmark, of which `--no-cuda` is the only thing that these hosts ask for."""
    few = ["--batch-size", 1, "--num-warmup-batches", 1, "--num-batches-per-iter", 1, "--num-iters", 2]
    words = ["python", example(lab, "horovod-synthetic.py"), "--no-cuda", "--model", "MobileNet", *few]
    done = own("train.run", "--unchecked", "--hosts", "0-1", "--np", 3, "--", *words, timeout=900)

    assert 0 == done.returncode, done.stdout + done.stderr
    assert "Number of CPUs: 3" in done.stdout
    assert "Total img/sec on 3 CPU(s): " in done.stdout


@pytest.mark.long
def test_pytorch_s_launchers_need_no_word_more(
    own: Own,
    torch_python: Path,
    accelerate: str,
    lab: Lab,
) -> None:
    """torchrun without an option about hosts, and Accelerate's own test of itself by its own launcher.

    The distribution's torchrun is of before Python 3.11, and fails there unless it keeps its workers' output.
    """
    (lab.shared / "ddp.py").write_text(DDP)
    two = ["--unchecked", "--hosts", "0-1", "--per", "node", "--venv", torch_python.parents[1]]
    torchrun = own("train.run", *two, "--", "torchrun", "-r", "1", "-t", "1", "/shared/ddp.py", timeout=600)
    launch = f"cd {accelerate}; {ACCELERATE_LAUNCH} -m accelerate.test_utils.scripts.test_script"
    itself = own("train.run", *two, "--env", f"PYTHONPATH={accelerate}", "--", launch, timeout=600)

    assert (0, 0) == (torchrun.returncode, itself.returncode), torchrun.stderr + itself.stdout + itself.stderr
    assert {"0 of 4", "1 of 4", "2 of 4", "3 of 4"} == set(re.findall(r"\d of \d", torchrun.stdout))
    assert "Training yielded the same results on one CPU or distributed setup" in itself.stdout
