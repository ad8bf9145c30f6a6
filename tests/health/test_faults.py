"""A cluster with one fault of each kind: each is found, named, and told apart from the hosts that are well."""

from dataclasses import replace
from typing import Any

import pytest

from cluster.health.quick_check import look_at_hosts
from cluster.health.report import HealthReport
from cluster.hosts import Host
from cluster.inventory import load_cluster
from cluster.ssh.fanout import Executor
from tests.health import faults
from tests.health.conftest import OWN_DISK_IS_FULL, make_calm

SCREEN = 48  # lines


@pytest.fixture(scope="module")
def looks(new_lab: Any) -> tuple[HealthReport, dict[faults.Fault, Host], HealthReport]:
    """A look at 18 hosts that are well, where each fault then was made, and a look at that."""
    lab = new_lab(18)
    cluster = load_cluster(f"lab:{lab.name}")
    with Executor(cluster) as reach:
        make_calm(reach, cluster.hosts)
        faults.shell_that_talks(reach, cluster.hosts[1])
        well = without_own_disk(look_at_hosts(reach, cluster, cluster.hosts))
    where = dict(zip(faults.EVERY, cluster.hosts[2:], strict=False))
    faults.make(where, lab, cluster)
    with Executor(cluster) as reach:
        return well, where, without_own_disk(look_at_hosts(reach, cluster, cluster.hosts))


def without_own_disk(report: HealthReport) -> HealthReport:
    """The report without what is said of `/` on every host, if this machine's disk is full."""
    if not OWN_DISK_IS_FULL:
        return report
    left = {h: tuple(p for p in ps if not p.what.startswith("/ is ")) for h, ps in report.problems.items()}
    return replace(report, problems=left)


def test_hosts_that_are_well_take_one_line(looks: Any) -> None:
    """Nothing to read when there is nothing to do."""
    well, _, _ = looks

    assert str(well).startswith("all 18 hosts are well (quick, ")
    assert 1 == len(str(well).splitlines())
    assert 0 == well.exit_code


@pytest.mark.parametrize("fault", faults.EVERY, ids=lambda f: f.__name__)
def test_the_fault_is_named_on_its_host(looks: Any, fault: Any) -> None:
    """In words that say what was seen there, with an action that has a command."""
    _, where, report = looks
    problems = report.problems[where[fault]]

    assert any(faults.EVERY[fault] in p.what for p in problems), [p.what for p in problems]
    assert all(p.do and p.command for p in problems)


def test_the_faulty_hosts_and_no_others_are_named(looks: Any) -> None:
    """Hosts that are well have nothing said of them."""
    _, where, report = looks

    assert {h.address for h in where.values()} == {h.address for h, p in report.problems.items() if p}
    assert 2 == report.exit_code


def test_the_report_fits_one_screen(looks: Any) -> None:
    """A group of two lines for each fault, the unfit first."""
    _, where, report = looks
    lines = str(report).splitlines()

    assert len(lines) <= SCREEN
    marks = [line.split()[0] for line in lines if line.startswith(("unfit", "watch"))]
    assert sorted(marks) == marks
    assert len(where) <= len(marks) <= len(where) + 3
    assert "{ranks}" not in str(report)


def test_a_hung_mount_hides_nothing_else(looks: Any) -> None:
    """The other checks of that host have their verdicts."""
    _, where, report = looks
    checks = {name: f.verdict.value for name, f in report.findings[where[faults.hung_mount]].items()}

    assert "ok" == checks["place:/"] == checks["memory"] == checks["versions"] == checks["xid"]
    assert "restart-job" == checks["place:/shared"]


def test_a_hung_driver_is_a_finding_and_what_was_not_asked_is_unknown(looks: Any) -> None:
    """Never ok."""
    _, where, report = looks
    checks = {name: f.verdict.value for name, f in report.findings[where[faults.hung_driver]].items()}

    assert ("reboot", "unknown") == (checks["gpu-driver"], checks["nvlink"])


def test_a_host_without_gpus_has_no_opinion_on_them(looks: Any) -> None:
    """A missing tool is not a fault."""
    _, _, report = looks
    master = next(iter(report.findings.values()))

    assert "not-applicable" == master["gpu-ecc"].verdict.value == master["efa"].verdict.value
    assert "Deep Learning AMI" in master["gpu-ecc"].note
