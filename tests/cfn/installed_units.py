"""What first boot installs of services."""

import subprocess
from pathlib import Path

from cluster.inventory import ROOT
from tests.conftest import PATIENCE_S

SETTINGS = {
    "SHARED": "/efs",
    "PROJECT": "/opt/dlami-cluster",
    "LIFE": "/efs/.dlami-cluster/x/1",
    "LOGIN": "ubuntu",
    "NAME": "x",
    "REGION": "us-east-1",
}


def installed(into: Path, role: str, shared: str = "/efs") -> set[str]:
    """What `scripts/services.sh` writes, as paths below `into`; without a role by what first boot has left there."""
    given = {"ROLE": role, **SETTINGS, "SHARED": shared} if role else {}
    subprocess.run(
        [ROOT / "scripts/services.sh"],
        env={"PATH": "/usr/bin:/bin", "INTO": str(into), **given},
        check=True,
        timeout=PATIENCE_S,
    )
    return {str(p.relative_to(into)) for p in into.rglob("*") if p.is_file()}
