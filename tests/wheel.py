"""The wheel of this checkout, built and installed into an environment of its own."""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from cluster.inventory import ROOT
from tests.conftest import PATIENCE_S

SOURCES = ("cfn", "cluster", "dlami", "eks", "lab", "trainer", "scripts")
FILES = (
    "pyproject.toml",
    "setup.py",
    "MANIFEST.in",
    "README.md",
    "LICENSE",
    "requirements.lock",
    "hosts.example",
    "tasks.py",
    "docs/troubleshooting.md",
)


def install_wheel(top: Path) -> Path:
    """Return the folder of the commands of an environment below `top`, which has this one's dependencies."""
    source = top / "source"
    for name in SOURCES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "build"))
    (source / "docs").mkdir()
    for name in FILES:
        shutil.copy2(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    offline = ["--no-deps", "--no-index"]
    subprocess.run(
        [*pip, "wheel", *offline, "--no-build-isolation", "-w", str(top), str(source)], check=True, timeout=PATIENCE_S
    )
    (wheel,) = top.glob("dlami_cluster-*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(top / "venv")], check=True, timeout=PATIENCE_S)
    packages = next((top / "venv/lib").glob("python*/site-packages"))
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    subprocess.run(
        [*pip, "--python", str(top / "venv/bin/python"), "install", *offline, str(wheel)],
        check=True,
        timeout=PATIENCE_S,
    )
    shutil.rmtree(source)
    return top / "venv/bin"
