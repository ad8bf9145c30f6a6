"""The queue and a matrix from the operator's seat, on lab hosts: taken hosts are waited for, free ones are used."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lab.record import Lab
from tests.cluster.lab_s3 import BUCKET
from tests.conftest import Inv, wait_for

MATRIX = """
name = "speeds"
program = "echo total images/sec: 5"

[over]
np = [2, 4]
"""


def started(done: "subprocess.CompletedProcess[str]") -> str:
    """The id of the job that was submitted."""
    assert done.returncode == 0, done.stderr
    return next(line for line in done.stderr.splitlines() if line.startswith("job ")).split()[1].rstrip(":")


def listed(inv: Inv, *words: str) -> dict[str, Any]:
    return {one["id"]: one for one in json.loads(inv("jobs.list", "--json", *words).stdout)}


@pytest.mark.promise("the queue")
def test_a_queue_and_a_matrix_share_the_hosts(
    lab: Lab, inv: Inv, s3: Any, hosts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any free hosts that suffice are taken, named ones are waited for, and a matrix packs its cells on what is left."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.url)
    here = [h.address for h in lab.hosts]
    go = lab.shared / "go"
    wait = "until [ -e /shared/go ]; do sleep 0.2; done"
    held = started(inv("train.run", "--detach", "--unchecked", "--hosts", "1", "--", wait))
    named = started(inv("train.run", "--detach", "--queue", "--unchecked", "--hosts", "1", "--", "hostname"))
    waits = listed(inv)[named]
    assert ("queued", 1, {here[1]: held}) == (waits["state"], waits["queue"]["number"], waits["queue"]["taken"])

    path = tmp_path / "speeds.toml"
    path.write_text(MATRIX)
    planned = inv("train.matrix", path, "--dry-run")
    assert (0, 2) == (planned.returncode, planned.stdout.count("to do")), planned.stderr
    done = inv("train.matrix", path, "--packed", "--json", "--upload", f"s3://{BUCKET}/speeds")
    assert done.returncode == 0, done.stderr
    table = json.loads(done.stdout)
    assert [(2, "succeeded", 5.0), (4, "succeeded", 5.0)] == [(r["np"], r["state"], r["images_per_s"]) for r in table]
    ran = listed(inv, "--all")
    assert not {here[1]} & {h["address"] for row in table for h in ran[row["job"]]["hosts"]}
    results = {"state.json", "results.csv", "results.json", "results.png"}
    assert results == {p.name for p in (lab.shared / "matrices/speeds").iterdir()}
    objects = s3.list_objects_v2(Bucket=BUCKET)["Contents"]
    assert {f"speeds/{name}" for name in results} == {o["Key"] for o in objects}
    again = inv("train.matrix", path, "--json")
    assert (0, table) == (again.returncode, json.loads(again.stdout)), again.stderr

    go.touch()
    wait_for(lambda: listed(inv, "--all")[named]["state"] == "succeeded", 120, "it had its turn")
    assert [here[1]] == [h["address"] for h in listed(inv, "--all")[named]["hosts"]]
