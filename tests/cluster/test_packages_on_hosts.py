"""A program's own packages on real hosts: built once, brought to each before its first rank, removed."""

import json
from pathlib import Path

import pytest

from lab.record import Lab
from tests.cluster.small_package import wheel
from tests.conftest import Inv

# In its first attempt rank 1 takes the packages away from its host, and dies as by the kernel.
PROGRAM = """
import os, shutil, signal, sys, tinyone
print(tinyone.VALUE, os.environ["RANK"], os.environ["DLAMI_ATTEMPT"], sys.executable, flush=True)
if os.environ["DLAMI_ATTEMPT"] == "1" and os.environ["RANK"] == "1":
    shutil.rmtree(os.environ["VIRTUAL_ENV"])
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.promise("packages")
def test_packages_are_on_every_host_before_its_first_rank(lab: Lab, inv: Inv, tmp_path: Path) -> None:
    """One that only this environment has: built once, found again, brought back to a host that lost it, and removed."""
    wheel(tmp_path, "tinyone")
    listed = tmp_path / "requirements.txt"
    listed.write_text("--no-index\n./tinyone-1.0-py3-none-any.whl\n")
    run = ("train.run", "--no-code", "--requirements", listed, "--per", "node")

    missing = inv(*run, "--hosts", "0-1", "--", "python", "-c", "import tinyone, numpy")
    assert 2 == missing.returncode, missing.stderr
    assert (
        "the program imports numpy, which is not in its environment of --requirements requirements.txt"
        in missing.stderr
    )
    assert "packages: building the environment of requirements.txt" in missing.stderr

    ran = inv(*run, "--unchecked", "--hosts", "0-1", "--", "python", "-c", PROGRAM)
    assert 0 == ran.returncode, ran.stderr + ran.stdout
    assert "packages:" not in ran.stderr  # nothing was built or copied
    for place in ("here 0 1", "here 1 1", "here 0 2", "here 1 2"):
        assert f"{place} /root/.cache/dlami-cluster/environments/" in ran.stdout
    job = json.loads(inv("jobs.show", "last", "--json").stdout)
    assert {"python", "open mpi"} == set(job["versions"]), "what the project has beside is not the program's"
    assert (
        "packages: copying it to 1 host"
        in (lab.shared / "jobs" / job["id"] / "logs/attempt-1/supervisor.log").read_text()
    )

    later = inv(*run, "--unchecked", "--hosts", "2", "--", "python", "-c", "import tinyone; print(tinyone.VALUE)")
    assert 0 == later.returncode, later.stderr
    assert "packages: copying it to 1 host" in later.stderr
    assert "building" not in later.stderr

    have = json.loads(inv("packages.list", "--json").stdout)["environments"]
    mine = next(e for e in have if e["id"] == job["packages"]["id"])
    assert [h.address for h in lab.hosts[:3]] == mine["hosts"]
    assert 0 == inv("packages.remove", mine["id"], "--yes").returncode
    assert 0 == inv("run", "--", f"test ! -e /root/.cache/dlami-cluster/environments/{mine['id']}").returncode
