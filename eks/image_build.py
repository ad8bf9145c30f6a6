"""Build of the pods' image: checks its requirements, runs scripts/image/build.sh, and measures the result."""

import json
import os
import re
import signal
import subprocess
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.errors import ClusterError, ConfigError
from cluster.files import IS_CHECKOUT
from cluster.interrupts import put_off
from cluster.inventory import ROOT
from cluster.ssh.fanout import wait_until
from eks import image_needs

SCRIPT = ROOT / "scripts/image/build.sh"
LIMIT_S = 3600.0
_TAG = re.compile(r"[a-z0-9]+([._:/-]+[a-z0-9]+)*(:[\w][\w.-]{0,127})?")
_END_S = 600.0  # for the build to remove its 200,000 files


@dataclass(frozen=True, kw_only=True)
class Build:
    """Request to build one image."""

    tag: str
    file: Path
    variant: str
    torch: bool
    base: str
    wheels: Path | None
    root: Path | None

    @classmethod
    def of(cls, *, tag: str, file: str, variant: str, torch: bool, base: str, wheels: str, root: str) -> "Build":
        """Check the command's arguments and return the build. Raises ConfigError before anything is created."""
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
        target = Path(file).absolute()
        if not target.parent.is_dir():
            raise ConfigError(f"--out {file}: there is no folder {target.parent}")
        if not os.access(target.parent, os.W_OK):
            raise ConfigError(f"--out {file}: {target.parent} cannot be written by who runs this")
        image_needs.check(base, root)
        if root and Path(root).exists() and any(Path(root).iterdir()):
            raise ConfigError(f"--root {root} is not empty: give a folder that is new")
        folders = (Path(f).absolute() if f else None for f in (wheels, root))
        wheels_at, root_at = folders
        return cls(tag=tag, file=target, variant=variant, torch=torch, base=base, wheels=wheels_at, root=root_at)

    def described(self) -> str:
        """Return one line that says what would be built, for a dry run."""
        base = self.base or "Debian's packages"
        packages = f"packages of {self.wheels}" if self.wheels else "packages fetched as requirements.lock has them"
        more = f", unpacked in {self.root}" if self.root else ""
        what = f"{self.variant}, with PyTorch" if self.torch else self.variant
        return f"would build {self.tag} ({what}) on {base}, {packages}, into {self.file}{more}"

    def run(self) -> dict[str, Any]:
        """Build the image. Return its file, size in bytes, digest, build seconds and commit.

        Raises ClusterError if the build fails. A failed build leaves nothing behind.
        """
        words = [str(SCRIPT), self.tag, str(self.file), *([str(self.root)] if self.root else [])]
        commit = _commit()
        torch = "yes" if self.torch else "no"
        given = {
            "REVISION": commit,
            "BASE": self.base,
            "VARIANT": self.variant,
            "TORCH": torch,
            "WHEELS": str(self.wheels or ""),
        }
        began = time.monotonic()
        process: subprocess.Popen[bytes] | None = None
        try:
            with put_off():  # between its beginning and our knowing it, too
                process = subprocess.Popen(
                    words, env={**os.environ, **given}, stdin=subprocess.DEVNULL, start_new_session=True
                )
            code = process.wait(LIMIT_S)
        except BaseException as e:
            if process:
                _end(process)
            if isinstance(e, subprocess.TimeoutExpired):
                raise ClusterError(f"{self.tag} was not built in {LIMIT_S / 60:.0f} minutes, and given up") from None
            raise
        if code:
            raise ClusterError(f"{self.tag} was not built: what went wrong is above")
        return {
            "tag": self.tag,
            "file": str(self.file),
            "bytes": self.file.stat().st_size,
            "digest": _digest(self.file),
            "seconds": round(time.monotonic() - began, 1),
            "commit": commit,
        }


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Terminate the build and wait until its script has removed what it created.

    Raises ClusterError if that takes too long. In a user namespace the process that created the namespace ends at once,
    and the script inside it later.
    """
    os.killpg(process.pid, signal.SIGTERM)
    if not wait_until(lambda: process.poll() is not None and not _is_there(process.pid), _END_S, pause_s=0.1):
        raise ClusterError(
            f"the build still takes away what it made (process group {process.pid}): end it, and remove dlami-image.* "
            "below /var/tmp or WORK"
        )


def _is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _commit() -> str:
    head = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    done = subprocess.run(head, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"no commit to build an image of: {next(iter(done.stderr.splitlines()), 'git fails')}")
    return done.stdout.strip()


def _digest(archive: Path) -> str:
    """Return the digest by which registries identify the image in an OCI archive. Equal images have equal digests."""
    with tarfile.open(archive) as tar:
        index = tar.extractfile("index.json")
        assert index, archive
        return str(json.load(index)["manifests"][0]["digest"])
