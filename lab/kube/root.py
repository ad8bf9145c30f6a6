"""Root file system of pods' containers: the built image if there is one, else this machine's root, read-only."""

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ConfigError
from cluster.files import shipped
from eks import image as layout
from lab import nodes
from lab.kube.environment import ImageConfig
from lab.kube.volumes import Mount

_FIRST_USER = 1000  # smaller uids in this machine's /etc/passwd are system users


@dataclass(frozen=True)
class Root:
    """A root file system: its folder, additional mounts, and the start configuration of its containers."""

    lower: Path
    layer: Path | None  # files laid over it when a container starts
    mounts: tuple[Mount, ...]
    config: ImageConfig


def of_image(folder: Path) -> Root:
    """Return the root of a built image: `rootfs/`, and `config.json` as `buildah inspect` prints it.

    Raises ConfigError.
    """
    try:
        said = json.loads((folder / "config.json").read_text())
        said = said["OCIv1"]["config"]
    except (OSError, ValueError, LookupError) as e:
        raise ConfigError(f"{folder} is no unpacked image ({e}): 'inv eks.image --root {folder}' makes one") from None
    variables = dict(v.partition("=")[::2] for v in said.get("Env") or [])
    uid = _uid(folder / "rootfs", str(said.get("User") or "0").partition(":")[0])
    config = ImageConfig(
        uid=uid,
        home=_home(folder / "rootfs", uid),
        working_dir=said.get("WorkingDir") or "/",
        variables=variables,
        command=(*(said.get("Entrypoint") or ()), *(said.get("Cmd") or ())),
    )
    return Root(folder / "rootfs", None, (), config)


def of_machine(folder: Path, project: Path) -> Root:
    """Return this machine's root below a layer in `folder` that adds the image's files which the machine lacks."""
    etc = folder / "etc"
    for made in (etc / "dlami", folder / layout.HOME.lstrip("/"), folder / "root/.ssh"):
        made.mkdir(parents=True)
    user = f"{layout.USER}:x:{layout.UID}:{layout.UID}::{layout.HOME}:/bin/bash"
    for file, line in (("passwd", user), ("group", f"{layout.USER}:x:{layout.UID}:")):
        kept = [e for e in Path("/etc", file).read_text().splitlines() if int(e.split(":")[2]) < _FIRST_USER]
        (etc / file).write_text("\n".join([*kept, line]) + "\n")
    (etc / "fstab").write_text("# a pod mounts nothing of this machine's\n")
    (folder / layout.SSHD_CONFIG.lstrip("/")).write_text(shipped("scripts/image/sshd_config").read_text())
    os.chown(folder / layout.HOME.lstrip("/"), layout.UID, layout.UID)
    (etc / "ssh").mkdir()
    for key in Path("/etc/ssh").glob("ssh_host_*"):
        os.mknod(etc / "ssh" / key.name, stat.S_IFCHR, os.makedev(0, 0))  # to an overlay: there is no such file
    (folder / "root").chmod(0o711)  # an interpreter may be below it
    os.setxattr(folder / "root/.ssh", "trusted.overlay.opaque", b"y")
    (folder / "root/.ssh").chmod(0o700)
    binds = [Mount(p, str(p), True) for p in nodes.binds(project)]
    return Root(Path("/"), folder, (*binds, Mount(project, layout.PROJECT, True)), ImageConfig())


def _uid(rootfs: Path, user: str) -> int:
    return int(user) if user.isdigit() else int(_entry(rootfs, 0, user)[2])


def _home(rootfs: Path, uid: int) -> str:
    return _entry(rootfs, 2, str(uid))[5]


def _entry(rootfs: Path, field: int, value: str) -> list[str]:
    entries = [line.split(":") for line in (rootfs / "etc/passwd").read_text().splitlines()]
    return next((e for e in entries if e[field] == value), ["root", "x", "0", "0", "", "/root", ""])
