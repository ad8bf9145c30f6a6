"""What pyproject.toml has no words for: files beside the packages in a checkout, inside `dlami` once installed."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SHIPPED = (
    "scripts/first-boot.sh",
    "scripts/heal-lost.sh",
    "scripts/image/sshd_config",
    "scripts/install.sh",
    "scripts/lab-host.sh",
    "scripts/lab-pod.sh",
    "cluster/guard/onhost/root_code.py",
    "scripts/services.sh",
    "scripts/setup.sh",
    "docs/troubleshooting.md",
    "requirements.lock",
    "tasks.py",
    "hosts.example",
)


class BuildWithShipped(build_py):
    """The packages, and the files that `cluster.files.shipped` finds."""

    def run(self) -> None:
        """Build, then copy."""
        super().run()
        for name in SHIPPED:
            target = Path(self.build_lib, "dlami/shipped", name)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(Path(__file__).parent / name, target)


setup(cmdclass={"build_py": BuildWithShipped})
