"""Download of COCO 2017: `python -m trainer.coco.archives DIR` unpacks the official zips into the trainer's layout.

It also fetches the weights that a training starts from. Zips already in DIR/archives are used. The others are
downloaded there, and an interrupted download is resumed.
"""

import errno
import http
import http.client
import sys
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainer.common.checkpoints import npz
from trainer.common.files.atomic_write import written_whole
from trainer.common.files.commandline import TrainerParser
from trainer.common.files.errors import ConfigError, TrainerError, entry
from trainer.common.files.plural import counted

SITE = "http://images.cocodataset.org"
BLOCK = 1 << 20
WEIGHTS = "http://models.tensorpack.com/FasterRCNN/ImageNet-R50-AlignPadding.npz"
"""ResNet-50 trained on ImageNet, from which the reference starts. Its checksum is not published."""
WEIGHTS_FOLDER = "pretrained-models"
KERNEL = (7, 7, 3, 64)
"""Shape of the kernel of a ResNet's first convolution."""


@dataclass(frozen=True)
class Archive:
    """Zip archive of the official COCO site."""

    name: str
    """Its path under the site's address."""
    folder: str
    """Folder that it unpacks to."""

    @property
    def file(self) -> str:
        """Return the zip's file name."""
        return self.name.rpartition("/")[2]


ARCHIVES = (
    Archive("annotations/annotations_trainval2017.zip", "annotations"),
    Archive("zips/val2017.zip", "val2017"),
    Archive("zips/train2017.zip", "train2017"),
)


def fetch(url: str, target: Path) -> None:
    """Download to `target`. Resumes an interrupted download and checks the length at the end.

    Raises:
        TrainerError: no connection, no room, or the download ended early. The part so far is kept for the next try.
    """
    partial = target.with_name(target.name + ".partial")
    done = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            goes_on = _continues(response, done)
            total = (done if goes_on else 0) + int(response.headers["Content-Length"])
            with partial.open("ab" if goes_on else "wb") as file:
                while block := response.read(BLOCK):
                    file.write(block)
    except urllib.error.HTTPError as e:
        if done and e.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:  # the server has nothing after this part
            partial.unlink()
            return fetch(url, target)
        raise TrainerError(f"{url} cannot be had ({e}): start again, or put the file at {target}") from e
    except OSError as e:
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            raise TrainerError(f"{partial} cannot be written ({e.strerror}): make room and start again") from e
        raise TrainerError(f"{url} broke off ({e}): start again, it continues where it stopped") from e
    except (http.client.HTTPException, TypeError, ValueError) as e:
        raise TrainerError(f"{url} broke off ({e}): start again, it continues where it stopped") from e
    if partial.stat().st_size != total:
        raise TrainerError(f"{url}: {partial.stat().st_size} of {total} bytes came; start again to continue")
    partial.replace(target)
    return None


def _continues(response: Any, done: int) -> bool:
    """Return True if the response resumes where the last download stopped, False if the server sends the whole file.

    Raises ValueError if the server sends another part.
    """
    if response.status != http.HTTPStatus.PARTIAL_CONTENT:
        return False
    begin = response.headers.get("Content-Range", "")
    if not begin.startswith(f"bytes {done}-"):
        raise ValueError(f"asked for the bytes from {done}, the server sends {begin or 'some'}")
    return True


def unpack(archive: Path, folder: Path) -> int:
    """Unpack a zip below `folder` and return the number of its files. Existing files of the right size are kept.

    Raises:
        TrainerError: the zip is damaged, or there is no room.
        ConfigError: it would write outside of the folder.
    """
    try:
        with zipfile.ZipFile(archive) as source:
            members = [m for m in source.infolist() if not m.is_dir()]
            for member in members:
                target = folder / member.filename
                if not target.resolve().is_relative_to(folder.resolve()):
                    raise ConfigError(f"{archive} holds {member.filename}, which lies outside of the folder")
                if not (target.is_file() and target.stat().st_size == member.file_size):
                    _unpack_one(source, member, target)
            return len(members)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as e:
        raise TrainerError(f"{archive} is damaged ({e}): remove it and start again") from e
    except OSError as e:
        raise TrainerError(f"{archive} cannot be unpacked to {folder}: {e}") from e


def prepare(folder: Path, *, download: bool, site: str = SITE) -> list[str]:
    """Create train2017/, val2017/, annotations/ and pretrained-models/ under `folder`. Returns one line per archive.

    Raises:
        ConfigError: a zip is missing and must not be downloaded.
    """
    zips = folder / "archives"
    lacking = missing(folder)
    if lacking and not download:
        raise ConfigError(
            f"{zips} lacks {', '.join(a.file for a in lacking)}: put them there, or let them be downloaded"
        )
    try:
        zips.mkdir(parents=True, exist_ok=True)
        (folder / WEIGHTS_FOLDER).mkdir(exist_ok=True)
    except OSError as e:
        raise ConfigError(f"{folder} cannot be written: {e}") from e
    lines = []
    for archive in ARCHIVES:
        if archive in lacking:
            fetch(f"{site}/{archive.name}", zips / archive.file)
        lines.append(f"{archive.file}: {counted(unpack(zips / archive.file, folder), 'file')}")
    return lines


def missing(folder: Path) -> list[Archive]:
    """Return the zips that are not in `folder`/archives yet."""
    return [a for a in ARCHIVES if not (folder / "archives" / a.file).is_file()]


def fetch_weights(folder: Path, url: str = WEIGHTS) -> Path:
    """Download the backbone's weights if they are missing, and check that they can be read.

    Raises:
        TrainerError: the download failed.
        ConfigError: the file is not one that `BACKBONE.WEIGHTS` takes.
    """
    target = weights_file(folder)
    if not target.is_file():
        fetch(url, target)
    try:
        if KERNEL != (shape := npz.read(target).get("conv0/W", np.zeros(0)).shape):
            raise ConfigError(f"{target} is no ResNet's: its conv0/W is {shape}, not {KERNEL}")
    except ConfigError as e:
        raise ConfigError(f"{e}: remove it and start again, or put another in its place") from e
    return target


def weights_file(folder: Path) -> Path:
    """Return the path of the downloaded backbone weights, which a training loads first."""
    return folder / WEIGHTS_FOLDER / WEIGHTS.rpartition("/")[2]


def _unpack_one(source: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(target) as partial, source.open(member) as stream, partial.open("wb") as file:
        while block := stream.read(BLOCK):  # the zip's checksum is verified at the member's end
            file.write(block)


def _say_weights(folder: Path) -> None:
    try:
        print(f"BACKBONE.WEIGHTS={fetch_weights(folder)}")
    except TrainerError as e:
        raise TrainerError(f"COCO is complete, but the weights to start from are not: {e}") from e


@entry
def main(argv: Sequence[str]) -> None:
    """Fetch, unpack and verify. The weights come last, since a training can also start without them."""
    from trainer.coco import verify

    p = TrainerParser(prog="python -m trainer.coco.archives", description="COCO 2017 from its official zips.")
    p.add_argument("folder", type=Path, help="for COCO's layout; zips in FOLDER/archives are used")
    p.add_argument("--check", action="store_true", help="only say what would be downloaded and unpacked")
    p.add_argument("--no-download", action="store_true", help="use only the zips in FOLDER/archives, fetch no weights")
    p.add_argument("--no-weights", action="store_true", help="do not fetch the weights that a training starts from")
    p.add_argument("--no-verify", action="store_true", help="do not look at every image afterwards")
    a = p.parse_args(argv)
    if a.check:
        lacking = missing(a.folder)
        for archive in ARCHIVES:
            source = f"{SITE}/{archive.name}" if archive in lacking else a.folder / "archives" / archive.file
            print(f"{source} would become {a.folder / archive.folder}")
        if not (a.no_weights or a.no_download or weights_file(a.folder).is_file()):
            print(f"{WEIGHTS} would become {weights_file(a.folder)}")
        return
    for line in prepare(a.folder, download=not a.no_download):
        print(line, flush=True)
    if not a.no_verify and verify.main([str(a.folder)]):
        raise TrainerError(f"{a.folder} was unpacked but is not as annotated")
    if not (a.no_weights or a.no_download):
        _say_weights(a.folder)


if __name__ == "__main__":
    sys.exit(main())
