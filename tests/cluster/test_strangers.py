"""Programs that nobody here wrote, unchanged, on two lab hosts: C, mpi4py, a shell's; Horovod's own example."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cluster.inventory import Cluster
from cluster.ssh.fanout import Reach
from lab.record import Lab
from tests.cluster.test_program_on_hosts import Own, own  # noqa: F401
from tests.conftest import PATIENCE_S

MPI4PY = "mpi4py==4.1.2"
ACCELERATE = ("accelerate==0.20.3", "packaging==25.0")  # for the distribution's PyTorch
KEPT = Path.home() / ".cache/dlami-cluster/strangers"  # for the next run
EXAMPLES = {  # a file's name here: where it is public, and its SHA-256
    "horovod-synthetic.py": (
        "horovod/horovod/v0.28.1/examples/tensorflow2/tensorflow2_synthetic_benchmark.py",
        "f59fdc77495f955ed22198a84e7d1127721b85731bb466427974069222aceb95",
    ),
    "pytorch-imagenet.py": (  # the last one for the distribution's PyTorch
        "pytorch/examples/f5bb60f8e6b2881be3a2ea8c9a3d43e676aa2340/imagenet/main.py",
        "8336835b759a7feee0348616aa071df338cff1be151dab95c613392fe9fb9c35",
    ),
}


def example(lab: Lab, name: str) -> str:
    """Where the hosts have an example that others have published, unchanged; skips the test where it cannot be had."""
    where, digest = EXAMPLES[name]
    kept = KEPT / name
    if not kept.exists():
        try:
            with urllib.request.urlopen(f"https://raw.githubusercontent.com/{where}", timeout=PATIENCE_S) as answer:
                text = answer.read()
        except OSError as e:
            pytest.skip(f"{where} cannot be had here: {e}")
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(text)
    assert digest == hashlib.sha256(kept.read_bytes()).hexdigest()
    shutil.copyfile(kept, lab.shared / name)
    return f"/shared/{name}"


def pip(*words: str) -> None:
    """Skips the test where it cannot be done."""
    try:
        subprocess.run(
            [sys.executable, "-m", "pip", "-q", *words], check=True, timeout=PATIENCE_S, stderr=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError) as e:
        pytest.skip(f"{words[-1]} cannot be had here: {e}")


ACCELERATE_LAUNCH = (
    "python -m accelerate.commands.launch --cpu --num_machines $NNODES --machine_rank $NODE_RANK "
    "--main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT --num_processes $NNODES"
)
DDP = """\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
model(torch.ones(3, 4)).sum().backward()
print(dist.get_rank(), "of", dist.get_world_size(), flush=True)
"""


@pytest.fixture(scope="module")
def mpi4py(session_lab: Lab) -> str:
    """Where the hosts have mpi4py's package, its own tests and its demos; skipped where they cannot be had."""
    kept = KEPT / MPI4PY
    if not kept.exists():
        new = kept.with_name(f".{MPI4PY}-{os.getpid()}")
        pip("install", "--no-deps", "--target", str(new / "lib"), MPI4PY)
        pip("download", "--no-deps", "--no-build-isolation", "--no-binary", ":all:", "-d", str(new), MPI4PY)
        with tarfile.open(next(new.glob("*.tar.gz"))) as archive:
            archive.extractall(new, filter="data")
        next(new.glob("mpi4py-*/")).rename(new / "source")
        new.rename(kept)
    shutil.copytree(kept, session_lab.shared / "mpi4py", dirs_exist_ok=True)
    return "/shared/mpi4py"


def test_programs_of_others_run_unchanged(own: Own, mpi4py: str, lab: Lab, cluster: Cluster, reach: Reach) -> None:  # noqa: F811
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


@pytest.fixture
def accelerate(lab: Lab) -> str:
    """Where the hosts have Accelerate's package; skipped where it cannot be had."""
    kept = KEPT / ACCELERATE[0]
    if not kept.exists():
        pip("install", "--no-deps", "--target", str(kept), *ACCELERATE)
    shutil.copytree(kept, lab.shared / "accelerate", dirs_exist_ok=True)
    return "/shared/accelerate"


@pytest.mark.long
def test_horovod_s_own_example(own: Own, lab: Lab) -> None:  # noqa: F811
    """Its TensorFlow 2 benchmark, of which `--no-cuda` is the only thing that these hosts ask for."""
    few = ["--batch-size", 1, "--num-warmup-batches", 1, "--num-batches-per-iter", 1, "--num-iters", 2]
    words = ["python", example(lab, "horovod-synthetic.py"), "--no-cuda", "--model", "MobileNet", *few]
    done = own("train.run", "--unchecked", "--hosts", "0-1", "--np", 3, "--", *words, timeout=900)

    assert 0 == done.returncode, done.stdout + done.stderr
    assert "Number of CPUs: 3" in done.stdout
    assert "Total img/sec on 3 CPU(s): " in done.stdout


@pytest.mark.long
def test_pytorch_s_launchers_need_no_word_more(
    own: Own,  # noqa: F811
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
