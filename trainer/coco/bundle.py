"""COCO as one tar with a manifest, made by `python -m trainer.coco.bundle DIR --out FILE.tar` and checked on the nodes.

The tar contains train2017/, val2017/, annotations/ and pretrained-models/, and last `manifest.json`: every file's size
and SHA-256. Files are stored in order of their names, so equal folders make equal bundles.
"""

import hashlib
import io
import json
import os
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trainer.coco.checks import file_name
from trainer.common.files.atomic_write import written_whole
from trainer.common.files.commandline import TrainerParser
from trainer.common.files.errors import ConfigError, TrainerError, entry
from trainer.common.files.plural import counted
from trainer.common.files.progress_lines import ProgressLines

MANIFEST = "manifest.json"
PARTS = ("annotations", "pretrained-models", "train2017", "val2017")


def make_bundle(folder: Path, out: Path) -> dict[str, Any]:
    """Write the tar atomically and return its manifest.

    Raises:
        ConfigError: the folder has no annotations or no images.
        TrainerError: the disk is full or a file cannot be read.
    """
    files = bundled_files(folder)
    manifest: dict[str, Any] = {"files": {}}
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        progress = ProgressLines(counted(len(files), "file"))
        with written_whole(out) as partial, tarfile.open(partial, "w") as tar:
            for file in files:
                progress.add()
                name = file.relative_to(folder).as_posix()
                manifest["files"][name] = {"bytes": file.stat().st_size, "sha256": _add(tar, file, name)}
            _add_text(tar, MANIFEST, json.dumps(manifest, indent=0))
    except OSError as e:
        raise TrainerError(f"{out} cannot be written: {e}") from e
    return manifest


def bundled_files(folder: Path) -> list[Path]:
    """Return the files of a folder's bundle, in its order.

    Raises:
        ConfigError: the folder has no annotations or no images, or a folder in it cannot be read.
    """
    if not (folder / "annotations").is_dir():
        raise ConfigError(f"{folder} is not in COCO's layout: annotations/ is missing")
    files = sorted(p for part in PARTS if (folder / part).exists() for p in _below(folder / part) if p.is_file())
    if not any(p.suffix.lower() in (".jpg", ".jpeg", ".png") for p in files):
        raise ConfigError(f"{folder} has no images in train2017/ or val2017/")
    return files


def _below(folder: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:  # os.walk ignores errors by default and would omit these files
        raise ConfigError(f"{error.filename} cannot be read: {error.strerror}") from error

    return (Path(parent, name) for parent, _, names in os.walk(folder, onerror=refuse) for name in names)


def differences(folder: Path) -> Iterator[str]:
    """Compare an unpacked bundle with its manifest. Yields one sentence per file that is missing or differs.

    Raises:
        ConfigError: there is no manifest, or it is damaged.
    """
    files = _read_manifest(folder / MANIFEST)
    progress = ProgressLines(counted(len(files), "file"))
    for name, (size, checksum) in files.items():
        progress.add()
        file = folder / name
        try:
            if not file.is_file():
                yield f"{name} is missing"
            elif file.stat().st_size != size:
                yield f"{name} has {file.stat().st_size} bytes, not {size}"
            elif _sha256(file) != checksum:
                yield f"{name} does not match its checksum"
        except OSError as e:
            yield f"{name} cannot be read ({e.strerror})"


def _read_manifest(path: Path) -> dict[str, tuple[int, str]]:
    """Return bytes and SHA-256 of each file, by name."""
    try:
        files = json.loads(path.read_text())["files"].items()
        found = {file_name(name): (int(facts["bytes"]), str(facts["sha256"])) for name, facts in files}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as e:
        raise ConfigError(f"{path} cannot be read ({e}): is {path.parent} an unpacked bundle?") from e
    if not found:
        raise ConfigError(f"{path} names no files: unpack the bundle again")
    return found


class _HashedFile(io.RawIOBase):
    """File that is hashed while it is read."""

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
    with _HashedFile(file) as source:
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
    """Make a bundle, or check an unpacked one."""
    p = TrainerParser(prog="python -m trainer.coco.bundle", description="COCO as one tar with a manifest.")
    p.add_argument("folder", type=Path, help="in COCO's layout, or an unpacked bundle")
    p.add_argument("--out", type=Path, help="the tar to write; without it the unpacked bundle in FOLDER is checked")
    p.add_argument("--check", action="store_true", help="with --out: only say what the tar would hold")
    a = p.parse_args(argv)
    if a.out and a.check:
        sizes = [file.stat().st_size for file in bundled_files(a.folder)]
        print(f"{a.out} would hold {counted(len(sizes), 'file')}, {sum(sizes) / 1e9:.3f} GB")
        return
    if a.out:
        manifest = make_bundle(a.folder, a.out)
        print(f"{a.out}: {counted(len(manifest['files']), 'file')}, {a.out.stat().st_size / 1e9:.3f} GB")
        return
    wrong = list(differences(a.folder))
    if wrong:
        raise TrainerError(f"{a.folder}: {counted(len(wrong), 'file')} not as in the manifest, the first: {wrong[0]}")
    print(f"{a.folder}: all files are as the manifest says")


if __name__ == "__main__":
    sys.exit(main())
