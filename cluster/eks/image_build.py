"""The build of the pods' image: checked before it begins, done by scripts/image/build.sh, measured at its end."""

import os
import re
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.errors import ClusterError, ConfigError
from cluster.files import IS_CHECKOUT
from cluster.inventory import ROOT

SCRIPT = ROOT / "scripts/image/build.sh"
LIMIT_S = 3600.0
_TAG = re.compile(r"[a-z0-9]+([._:/-]+[a-z0-9]+)*(:[\w][\w.-]{0,127})?")
_END_S = 60.0  # for the build to take away what it made


@dataclass(frozen=True, kw_only=True)
class Build:
    """One image to be built."""

    tag: str
    file: Path
    variant: str
    torch: bool
    base: str
    wheels: Path | None
    root: Path | None

    @classmethod
    def of(cls, *, tag: str, file: str, variant: str, torch: bool, base: str, wheels: str, root: str) -> "Build":
        """It from what was typed. Raises ConfigError before anything is made."""
        if not IS_CHECKOUT or not (ROOT / ".git").exists():
            raise ConfigError("the image is built of committed files: run this in a checkout of the project")
        if not _TAG.fullmatch(tag):
            raise ConfigError(f"--tag {tag!r}: expected the name of an image, as 'registry/name:tag'")
        if variant not in ("cpu", "gpu"):
            raise ConfigError(f"--variant {variant!r}: give cpu or gpu")
        if variant == "gpu" and not base:
            raise ConfigError("--variant gpu needs a --base with CUDA's compiler and NCCL: Debian's packages have none")
        if variant == "gpu" and torch:
            raise ConfigError("--torch is Debian's PyTorch, for processors: a --base for GPUs brings its own")
        if wheels and not list(Path(wheels).glob("horovod-*.whl")):
            raise ConfigError(f"--wheels {wheels} has no wheel of Horovod: it must have all that is locked")
        if root and Path(root).exists() and any(Path(root).iterdir()):
            raise ConfigError(f"--root {root} is not empty: give a folder that is new")
        target = Path(file).absolute()
        if not target.parent.is_dir():
            raise ConfigError(f"--out {file}: there is no folder {target.parent}")
        needed = ["buildah", "git", *([] if base else ["mmdebstrap"])]
        if missing := [tool for tool in needed if not shutil.which(tool)]:
            raise ConfigError(f"{' and '.join(missing)} missing here: apt-get install {' '.join(missing)}")
        folders = (Path(f).absolute() if f else None for f in (wheels, root))
        wheels_at, root_at = folders
        return cls(tag=tag, file=target, variant=variant, torch=torch, base=base, wheels=wheels_at, root=root_at)

    def described(self) -> str:
        """What would be done, in a line."""
        base = self.base or "Debian's packages"
        packages = f"packages of {self.wheels}" if self.wheels else "packages fetched as requirements.lock has them"
        more = f", unpacked in {self.root}" if self.root else ""
        what = f"{self.variant}, with PyTorch" if self.torch else self.variant
        return f"would build {self.tag} ({what}) on {base}, {packages}, into {self.file}{more}"

    def run(self) -> dict[str, Any]:
        """Build it: its file, bytes, seconds and commit. Raises ClusterError; nothing half-made stays."""
        words = [str(SCRIPT), self.tag, str(self.file), *([str(self.root)] if self.root else [])]
        head = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
        commit = subprocess.run(head, capture_output=True, text=True, check=True).stdout.strip()
        torch = "yes" if self.torch else "no"
        given = {
            "REVISION": commit,
            "BASE": self.base,
            "VARIANT": self.variant,
            "TORCH": torch,
            "WHEELS": str(self.wheels or ""),
        }
        began = time.monotonic()
        with subprocess.Popen(
            words, env={**os.environ, **given}, stdin=subprocess.DEVNULL, start_new_session=True
        ) as process:
            try:
                code = process.wait(LIMIT_S)
            except BaseException:
                os.killpg(process.pid, signal.SIGTERM)  # the script cleans up when its tools have ended
                process.wait(_END_S)
                raise
        if code:
            raise ClusterError(f"{self.tag} was not built: what went wrong is above")
        return {
            "tag": self.tag,
            "file": str(self.file),
            "bytes": self.file.stat().st_size,
            "seconds": round(time.monotonic() - began, 1),
            "commit": commit,
        }
