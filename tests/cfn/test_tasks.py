"""The tasks as an operator types them: child processes, pointed at the fake by AWS_ENDPOINT_URL and nothing else."""

import json
from pathlib import Path

import pytest

from cluster.clusterfile import text
from lab.aws import FakeAws
from tests.cfn.command_line import inv


@pytest.mark.promise("a stack")
def test_a_cluster_from_one_file_planned_created_watched_changed_and_deleted(fake: FakeAws, tmp_path: Path) -> None:
    """The whole story by the tasks alone: answers on stdout, progress on stderr, exit codes."""
    assert 0 == inv(tmp_path, "stack.init", "--name", "demo", "--ssh-from", "203.0.113.7/32").returncode
    path = tmp_path / "cluster.toml"

    planned = inv(tmp_path, "stack.plan")
    assert planned.returncode == 0, planned.stderr
    assert "1 master + 1 worker, g5.12xlarge" in planned.stdout and "cost      unknown" in planned.stdout

    refused = inv(tmp_path, "stack.create")
    assert (2, True) == (refused.returncode, "add --yes" in refused.stderr)

    created = inv(tmp_path, "stack.create", "--yes")
    assert created.returncode == 0, created.stderr
    assert (
        "demo is ready: 2 hosts, master " in created.stdout
        and "next: inv hosts.write, then inv sync, inv setup" in created.stdout
    )
    assert "storage" in created.stderr and len(created.stderr.splitlines()) < 25

    state = json.loads(inv(tmp_path, "stack.status", "--json").stdout)
    assert (True, [0, 1]) == (state["healthy"], [h["rank"] for h in state["hosts"]])

    spent = json.loads(inv(tmp_path, "stack.cost", "--no-jobs", "--json").stdout)
    assert sorted(h["instance_id"] for h in state["hosts"]) == sorted(h["instance_id"] for h in spent["hosts"])

    wrote = inv(tmp_path, "hosts.write", "--source", "stack")
    assert "2 hosts, 8 slots" in wrote.stdout, wrote.stderr
    assert [f"{h['address']} slots=4" for h in state["hosts"]] == (tmp_path / "hosts").read_text().split("\n")[:2]
    assert state["outputs"]["MasterAddress"] + " ssh-ed25519" in (tmp_path / "known_hosts").read_text()
    assert (f'gateway = "{state["outputs"]["MasterAddress"]}"' in path.read_text()) and text.read(
        path
    ).nodes.workers == 1
    assert 0 == inv(tmp_path, "hosts.write", "--source", "stack").returncode

    path.write_text(path.read_text().replace("workers = 1", "workers = 2"))
    dry = inv(tmp_path, "stack.update", "--dry-run", "--json")
    assert ["WorkerNodes"] == [c["resource"] for c in json.loads(dry.stdout)]
    changed = inv(tmp_path, "stack.update", "--yes")
    assert "demo has 3 hosts" in changed.stdout, changed.stderr
    again = inv(tmp_path, "stack.update", "--yes")
    assert (0, True) == (again.returncode, "already as the cluster file says" in again.stderr)

    deleted = inv(tmp_path, "stack.delete", "--yes")
    assert deleted.returncode == 0, deleted.stderr
    assert 'storage.efs = "fs-' in deleted.stdout
    again = inv(tmp_path, "stack.delete", "--yes")
    assert (0, True) == (again.returncode, "there is no stack demo in us-east-1" in again.stderr), again.stderr
    gone = inv(tmp_path, "stack.status")
    assert (1, True) == (gone.returncode, "there is no stack demo in us-east-1" in gone.stderr)
    assert "Traceback" not in "".join(r.stderr for r in (planned, refused, created, changed, again, deleted, gone))


def test_a_bad_file_ends_with_code_2_and_one_line(fake: FakeAws, tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text("[nodes]\nworkers = 99\n")
    bad = inv(tmp_path, "stack.plan")
    assert (2, 1) == (bad.returncode, len(bad.stderr.strip().split("\n")))
    assert "cluster.toml:2: nodes.workers: 99 is outside 0 to 63" in bad.stderr


def test_a_64_node_p5_cluster_can_be_planned(fake: FakeAws, tmp_path: Path) -> None:
    """1 + 63 of the largest: within quota, template limit, and with a known price."""
    inv(tmp_path, "stack.init", "--name", "big", "--ssh-from", "203.0.113.7/32")
    path = tmp_path / "cluster.toml"
    path.write_text(
        path.read_text()
        .replace("g5.12xlarge", "p5.48xlarge")
        .replace("workers = 1", "workers = 63")
        .replace("usd_per_hour = 0.0", "usd_per_hour = 50.0")
    )
    planned = json.loads(inv(tmp_path, "stack.plan", "--json").stdout)
    assert (64, 512, 3200.0) == (planned["hosts"], planned["gpus"], planned["usd_per_hour"])
    assert planned["template_bytes"] < 51_200
