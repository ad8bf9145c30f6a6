"""Programs of others on lab hosts."""

import hashlib
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from lab.record import Lab
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
