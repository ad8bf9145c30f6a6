"""`python -m trainer.coco.bundle DIR --out FILE.tar`: COCO as one tar with a manifest, and its check on the nodes.

The tar holds train2017/, val2017/, annotations/ and pretrained-models/, and last `manifest.json`: every file's size and
SHA-256. Files are stored in order of their names, so equal folders make equal bundles.
"""

import argparse
import hashlib
import io
import json
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trainer.errors import ConfigError, TrainerError, entry

MANIFEST = "manifest.json"
PARTS = ("annotations", "pretrained-models", "train2017", "val2017")


def make_bundle(folder: Path, out: Path) -> dict[str, Any]:
    """Writes the tar, whole or not at all, and returns its manifest.

    Raises:
        ConfigError: the folder has no annotations or no images, or `out` lies inside of it.
        TrainerError: the disk is full or a file cannot be read.
    """
    if not (folder / "annotations").is_dir():
        raise ConfigError(f"{folder} is not in COCO's layout: annotations/ is missing")
    files = sorted(p for part in PARTS for p in (folder / part).rglob("*") if p.is_file())
    if not any(p.suffix.lower() in (".jpg", ".jpeg", ".png") for p in files):
        raise ConfigError(f"{folder} has no images in train2017/ or val2017/")
    partial = out.with_name(f".{out.name}.partial")
    manifest: dict[str, Any] = {"files": {}}
    try:
        with tarfile.open(partial, "w") as tar:
            for file in files:
                name = file.relative_to(folder).as_posix()
                manifest["files"][name] = {"bytes": file.stat().st_size, "sha256": _add(tar, file, name)}
            _add_text(tar, MANIFEST, json.dumps(manifest, indent=0))
        partial.replace(out)
    except OSError as e:
        partial.unlink(missing_ok=True)
        raise TrainerError(f"{out} cannot be written: {e}") from e
    return manifest


def differences(folder: Path) -> Iterator[str]:
    """What an unpacked bundle lacks or has otherwise than its manifest says.

    Raises:
        ConfigError: there is no manifest.
    """
    try:
        files = json.loads((folder / MANIFEST).read_text())["files"]
    except (OSError, ValueError, KeyError) as e:
        raise ConfigError(f"{folder / MANIFEST} cannot be read ({e}): is {folder} an unpacked bundle?") from e
    for name, facts in files.items():
        file = folder / name
        if not file.is_file():
            yield f"{name} is missing"
        elif file.stat().st_size != facts["bytes"]:
            yield f"{name} has {file.stat().st_size} bytes, not {facts['bytes']}"
        elif _sha256(file) != facts["sha256"]:
            yield f"{name} does not match its checksum"


class _Summed(io.RawIOBase):
    """A file that is hashed while it is read."""

    def __init__(self, path: Path) -> None:
        self._file, self.digest = path.open("rb"), hashlib.sha256()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        block = self._file.read(size)
        self.digest.update(block)
        return block

    def close(self) -> None:
        self._file.close()
        super().close()


def _add(tar: tarfile.TarFile, file: Path, name: str) -> str:
    info = _plain(tarfile.TarInfo(name), file.stat().st_size)
    with _Summed(file) as source:
        tar.addfile(info, source)
        return source.digest.hexdigest()


def _add_text(tar: tarfile.TarFile, name: str, text: str) -> None:
    tar.addfile(_plain(tarfile.TarInfo(name), len(text.encode())), io.BytesIO(text.encode()))


def _plain(info: tarfile.TarInfo, size: int) -> tarfile.TarInfo:
    info.size, info.mode = size, 0o644
    return info


def _sha256(file: Path) -> str:
    with file.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


@entry
def main(argv: Sequence[str]) -> None:
    """Makes a bundle, or checks an unpacked one."""
    p = argparse.ArgumentParser(prog="python -m trainer.coco.bundle", description=__doc__)
    p.add_argument("folder", type=Path)
    p.add_argument("--out", type=Path, help="the tar to write; without it the unpacked bundle in FOLDER is checked")
    a = p.parse_args(argv)
    if a.out:
        manifest = make_bundle(a.folder, a.out)
        print(f"{a.out}: {len(manifest['files'])} files, {a.out.stat().st_size / 1e9:.3f} GB")
        return
    wrong = list(differences(a.folder))
    if wrong:
        raise TrainerError(f"{a.folder}: {len(wrong)} files differ from the manifest, the first: {wrong[0]}")
    print(f"{a.folder}: all files are as the manifest says")


if __name__ == "__main__":
    sys.exit(main())
