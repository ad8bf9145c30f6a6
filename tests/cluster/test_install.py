"""What the installer leaves of itself, and that it installs nothing but what the lock file names by checksum."""

import hashlib
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cluster.inventory import ROOT

LOCK = (ROOT / "requirements.lock").read_text()


def sourced(script: Any, tmp_path: Path) -> Any:
    """Lines of shell after the installer's functions, with the machine's policy file somewhere harmless."""
    return subprocess.run(
        ["bash", "-c", f"source {ROOT}/scripts/install.sh; as_root=(); policy={tmp_path}/policy-rc.d; {script}"],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_package_can_start_its_daemon_again_after_an_installation_that_was_killed(tmp_path: Path) -> None:
    """The next start of the installer takes away what the killed one left."""
    policy = tmp_path / "policy-rc.d"
    sourced("hold_daemons; kill -9 $$", tmp_path)
    assert "exit 101" in policy.read_text()

    done = sourced("release_daemons", tmp_path)
    assert 0 == done.returncode and not policy.exists(), done.stderr


def test_a_policy_that_the_machine_had_already_is_left_alone(tmp_path: Path) -> None:
    """It is the administrator's."""
    policy = tmp_path / "policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n")
    sourced("hold_daemons; release_daemons", tmp_path)

    assert "#!/bin/sh\nexit 101\n" == policy.read_text()


def test_the_policy_is_gone_after_an_installation_that_failed(tmp_path: Path) -> None:
    """However the script ends."""
    sourced("hold_daemons; false", tmp_path)

    assert not (tmp_path / "policy-rc.d").exists()


def test_every_package_is_locked_by_checksum() -> None:
    """`scripts/lock.py` wrote them; names, versions and checksums, nothing else."""
    done = subprocess.run([ROOT / "scripts/lock.py", "--check"], capture_output=True, text=True, timeout=60)

    assert (0, "without a checksum: none\n") == (done.returncode, done.stdout), done.stderr


@pytest.mark.parametrize(
    "line",
    re.findall(r"^.*pip\[@\]\}.*|^.*bin/pip\" wheel.*(?:\n .*)+", (ROOT / "scripts/install.sh").read_text(), re.M),
)
def test_the_installer_takes_nothing_by_name_alone(line: Any) -> None:
    """Each call of pip asks for checksums; what was built here from locked sources has none that anybody could know."""
    assert "--require-hashes" in line or "built.txt" in line or ".horovod" in line, line


def test_a_file_with_another_checksum_is_refused(tmp_path: Path) -> None:
    """pip says so and installs nothing."""
    wheel = tmp_path / "other-1.0-py3-none-any.whl"
    wheel.write_bytes(b"not what was locked")
    (tmp_path / "lock").write_text(f"other==1.0 --hash=sha256:{hashlib.sha256(b'what was locked').hexdigest()}\n")
    words: list[Any] = [
        ROOT / ".venv/bin/pip",
        "install",
        "--no-index",
        "--find-links",
        tmp_path,
        "--require-hashes",
        "--no-deps",
    ]
    done = subprocess.run(
        [*words, "--target", tmp_path / "to", "-r", tmp_path / "lock"], capture_output=True, text=True, timeout=120
    )

    assert done.returncode and "DO NOT MATCH" in done.stderr
    assert not Path(tmp_path / "to").exists()
