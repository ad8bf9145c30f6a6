"""The services that first boot leaves on a node: units that systemd takes, copies that only root may change."""

import shutil
import subprocess
from pathlib import Path

import pytest

from cluster.inventory import ROOT
from tests.cfn.installed_units import SETTINGS, installed
from tests.conftest import PATIENCE_S


def test_the_master_heals_and_every_node_is_warned(tmp_path: Path) -> None:
    """A worker has no jobs to go on with."""
    lib, units = "usr/local/lib/dlami-cluster", "etc/systemd/system"
    worker = {
        f"{lib}/{name}"
        for name in (
            "notice.py",
            "aws_node_names.py",
            "root_code.py",
            "shared_tree.py",
            "heal-lost.sh",
            "metadata.sh",
            "node_role.py",
            ".installed",
        )
    }
    programs = ("history", "policy", "api", "activity", "renew", "root_code")
    worker |= {f"{lib}/guard/cluster/guard/onhost/{name}.py" for name in programs}
    worker |= {f"{lib}/guard/cluster/ssh/onhost/trusted_files.py"}
    worker |= {f"{units}/dlami-{name}.service" for name in ("metadata", "notice", "names", "activity")}
    worker |= {"etc/needrestart/conf.d/dlami-cluster.conf", "etc/systemd/networkd.conf.d/60-dlami-cluster.conf"}
    assert worker == installed(tmp_path / "worker", "worker")
    master = {f"{units}/dlami-{name}" for name in ("heal.service", "guard.service", "guard.timer")}
    assert worker | master == installed(tmp_path / "master", "master")
    for name in ("notice.py", "aws_node_names.py", "heal-lost.sh", "metadata.sh"):
        assert 0o755 == (tmp_path / "master" / lib / name).stat().st_mode & 0o777


def test_what_first_boot_has_left_is_enough_to_install_them_later(tmp_path: Path) -> None:
    """As `inv sync` does on a node that has booted without the project: by first boot's own line."""
    script = (ROOT / "scripts/first-boot.sh").read_text()
    (line,) = (one for one in script.splitlines() if "/etc/dlami-cluster.conf" in one)
    (tmp_path / "by-hand/etc").mkdir(parents=True)
    subprocess.run(
        ["bash", "-euc", f"leaves() {{ {line.replace('/etc', f'{tmp_path}/by-hand/etc')}; }}; leaves"],
        env={"PATH": "/usr/bin:/bin", "ROLE": "master", **SETTINGS}, check=True, timeout=PATIENCE_S,
    )  # fmt: skip
    left = {"etc/dlami-cluster.conf"}
    assert installed(tmp_path / "by-hand", "") - left == installed(tmp_path / "booted", "master")
    unit = "etc/systemd/system/dlami-guard.service"
    assert (tmp_path / "booted" / unit).read_text() == (tmp_path / "by-hand" / unit).read_text()


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze here")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    """No unknown word, no wrong value: what it only warns of, it passes over at boot."""
    installed(tmp_path, "master")
    units = sorted([*tmp_path.glob("etc/systemd/system/*.service"), *tmp_path.glob("etc/systemd/system/*.timer")])
    for unit in units:
        unit.write_text(unit.read_text().replace("/usr/local/lib/", f"{tmp_path}/usr/local/lib/"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    ours = [line for line in done.stderr.splitlines() if "dlami-" in line]
    assert (0, []) == (done.returncode, ours), done.stderr


@pytest.mark.skipif(not shutil.which("systemd-escape"), reason="no systemd-escape here")
@pytest.mark.parametrize("shared", ["/efs", "/mnt/my-data_2/x.y"])
def test_who_uses_the_shared_folder_waits_for_its_mount(tmp_path: Path, shared: str) -> None:
    """It is nofail, for which remote-fs.target does not wait; without it nobody makes folders in its place."""
    installed(tmp_path, "master", shared)
    words = ["systemd-escape", "--path", "--suffix=mount", shared]
    mount = subprocess.run(words, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout.strip()
    for name, guarded in (
        ("heal", ""),
        ("names", "ExecStartPre"),
        ("activity", "ExecStartPre"),
        ("guard", "ExecCondition"),
    ):
        lines = (tmp_path / f"etc/systemd/system/dlami-{name}.service").read_text().splitlines()
        (after,) = (line for line in lines if line.startswith("After="))
        assert mount in after.removeprefix("After=").split()
        assert not guarded or f"{guarded}=/usr/bin/mountpoint -q {shared}" in lines


@pytest.mark.skipif(not shutil.which("perl"), reason="no perl here")
def test_an_update_of_a_library_restarts_none_of_them(tmp_path: Path) -> None:
    """needrestart reads the file as Perl, and takes the names of units by its patterns."""
    installed(tmp_path, "worker")
    path = tmp_path / "etc/needrestart/conf.d/dlami-cluster.conf"
    asks = f"our %nrconf; do '{path}'; print join ' ', grep {{ my $u = $_; grep {{ $u =~ /$_/ }} keys %{{$nrconf{{override_rc}}}} }} @ARGV"
    words = ["perl", "-e", asks, "dlami-efs.service", "dlami-heal.service", "ssh.service"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)

    assert (0, "dlami-efs.service dlami-heal.service") == (done.returncode, done.stdout), done.stderr


def test_a_job_outlives_what_started_it_again(tmp_path: Path) -> None:
    """The supervisors that the unit leaves behind are not ended with it, nor when one rank runs out of memory."""
    installed(tmp_path, "master")
    unit = (tmp_path / "etc/systemd/system/dlami-heal.service").read_text().splitlines()
    assert {"KillMode=process", "RemainAfterExit=yes", "OOMPolicy=continue", "LimitMEMLOCK=infinity"} <= set(unit)
