"""The rungs that measure, on real hosts: the one slow card among eight has a name, and a baseline is kept."""

import json
from typing import Any

import pytest

from cluster.health.deep import measure_hosts
from cluster.health.net import measure_network, measure_pairs
from cluster.health.pairing import pair_problems
from cluster.inventory import load_cluster
from cluster.ssh.fanout import Executor
from lab import lab as labs


@pytest.fixture(scope="module")
def eight(new_lab: Any) -> Any:
    """Eight hosts."""
    return new_lab(8)


def test_the_slow_card_is_named_and_no_other(eight: Any) -> None:
    """Exactly it, whatever this machine does meanwhile: its 20 Mbit/s are a tenth of what the other cards carry."""
    for host in eight.hosts:
        labs.slow(eight, host, mbit=20 if host.rank == 5 else 200, delay_ms=None)
    cluster = load_cluster(f"lab:{eight.name}")
    with Executor(cluster) as reach:
        pairs = measure_pairs(reach, cluster.hosts, way_s=1.5, streams=2)
    found = pair_problems(pairs)

    assert 3 * 4 == len(pairs)
    assert all(not p.error for p in pairs), [p.error for p in pairs]
    assert [cluster.hosts[5]] == list(found)
    assert max(p.slowest for p in pairs if cluster.hosts[5] in (p.a, p.b)) < 20.5e6 / 8 * 1.1


def test_net_measures_all_reduce_and_compares_it_with_the_run_before(eight: Any) -> None:
    """On two healthy hosts: rates by size, stored for this kind of cluster; under them, the next run says so, and is
    not stored."""
    labs.heal(eight, eight.hosts)
    cluster = load_cluster(f"lab:{eight.name}")
    with Executor(cluster) as reach:
        report = measure_network(reach, cluster, cluster.hosts[:2])
    kept = list((eight.shared / "health/baselines").glob("*.json"))

    assert not report.unfit, str(report)
    assert any(line.startswith("all-reduce, bus bandwidth: 4 KiB ") and "(2 ranks)" in line for line in report.measured)
    assert "no earlier run of this kind: this one is the baseline" in report.measured
    assert 1 == len(kept)
    rates = json.loads(kept[0].read_text())["runs"][0]["rates"]
    assert {"pairs", "4 KiB", "64 KiB", "1 MiB", "8 MiB"} == set(rates)
    assert all(rate > 0 for rate in rates.values())
    assert kept[0].name.startswith("no-ec2--no-ami--2x2--tensorflow-")

    faster = {"runs": [{"rates": {name: 1000 * rate for name, rate in rates.items()}}]}
    kept[0].write_text(json.dumps(faster))
    with Executor(cluster) as reach:
        again = measure_network(reach, cluster, cluster.hosts[:2])
    fell = [p for p in again.problems[cluster.hosts[1]] if p.check == "all-reduce"]

    assert [False] == [p.unfit for p in fell]
    assert "% of the baseline" in fell[0].what
    assert faster == json.loads(kept[0].read_text())


def test_deep_measures_each_host_and_runs_horovod_over_all(eight: Any) -> None:
    """Memory and disk of three hosts, and a sum over all ranks that is right."""
    labs.heal(eight, eight.hosts)
    cluster = load_cluster(f"lab:{eight.name}")
    with Executor(cluster) as reach:
        report = measure_hosts(reach, cluster, cluster.hosts[:3])

    assert not report.unfit, str(report)
    assert ["disk read", "disk write", "memory"] == sorted(line.partition(":")[0] for line in report.measured[:-1])
    assert "MPI and Horovod: 3 ranks reduce rightly" in report.measured[-1]


def test_a_host_where_horovod_is_broken_is_named(eight: Any) -> None:
    """The smoke run fails; its problem says why, and nothing of it is left on the hosts."""
    labs.heal(eight, eight.hosts)
    cluster = load_cluster(f"lab:{eight.name}")
    broken = cluster.hosts[1]
    with Executor(cluster) as reach:
        package = f"$(echo {cluster.project}/.venv/lib/python3*/site-packages/horovod/tensorflow)"
        reach.run([broken], f"mount -t tmpfs tmpfs {package}").check()
        try:
            report = measure_hosts(reach, cluster, cluster.hosts[:2])
        finally:
            reach.run([broken], f"umount {package}").check()
        left = reach.run(
            cluster.hosts[:2], "pgrep -f cluster.health.ranks.[r]educe; ls /tmp | grep dlami-; true"
        ).check()

    assert [broken] == [h for h, problems in report.problems.items() if any(p.check == "horovod" for p in problems)], (
        str(report)
    )
    assert {""} == {r.text for r in left.values()}
