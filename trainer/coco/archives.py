"""`python -m trainer.coco.archives DIR`: COCO 2017 from its official zips into the layout the trainer reads.

Zips already in DIR/archives are used; the others are downloaded there, continued where a download broke off.
"""

import argparse
import http.client
import sys
import urllib.request
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.errors import ConfigError, TrainerError, entry

SITE = "http://images.cocodataset.org"
BLOCK = 1 << 20


@dataclass(frozen=True)
class Archive:
    """One official zip."""

    name: str
    """Its address under the site."""
    folder: str
    """What it unpacks to."""

    @property
    def file(self) -> str:
        """The zip's file name."""
        return self.name.rpartition("/")[2]


ARCHIVES = (
    Archive("annotations/annotations_trainval2017.zip", "annotations"),
    Archive("zips/val2017.zip", "val2017"),
    Archive("zips/train2017.zip", "train2017"),
)


def fetch(url: str, target: Path) -> None:
    """Downloads to `target`; an interrupted download is continued and the length checked at the end.

    Raises:
        TrainerError: no connection, or the download ended early; what is there is kept for the next try.
    """
    partial = target.with_name(target.name + ".partial")
    done = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            goes_on = response.status == 206
            total = (done if goes_on else 0) + int(response.headers["Content-Length"])
            with partial.open("ab" if goes_on else "wb") as file:
                while block := response.read(BLOCK):
                    file.write(block)
    except (OSError, http.client.HTTPException, TypeError) as e:
        raise TrainerError(f"{url} broke off ({e}): start again, it continues where it stopped") from e
    if partial.stat().st_size != total:
        raise TrainerError(f"{url}: {partial.stat().st_size} of {total} bytes came; start again to continue")
    partial.replace(target)


def unpack(archive: Path, folder: Path) -> int:
    """Unpacks a zip into `folder`'s parent layout and returns the number of files; files that are whole are kept.

    Raises:
        TrainerError: the zip is damaged; names the member.
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
    except zipfile.BadZipFile as e:
        raise TrainerError(f"{archive} is damaged ({e}): remove it and start again") from e


def prepare(folder: Path, *, download: bool, site: str = SITE) -> list[str]:
    """The layout train2017/, val2017/, annotations/, pretrained-models/ under `folder`; one line per archive.

    Raises:
        ConfigError: a zip is missing and must not be downloaded.
    """
    zips = folder / "archives"
    zips.mkdir(parents=True, exist_ok=True)
    missing = [a.file for a in ARCHIVES if not (zips / a.file).is_file()]
    if missing and not download:
        raise ConfigError(f"{zips} lacks {', '.join(missing)}: put them there, or let them be downloaded")
    lines = []
    for archive in ARCHIVES:
        if archive.file in missing:
            fetch(f"{site}/{archive.name}", zips / archive.file)
        lines.append(f"{archive.file}: {unpack(zips / archive.file, folder)} files")
    (folder / "pretrained-models").mkdir(exist_ok=True)
    return lines


def _unpack_one(source: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    with source.open(member) as stream, partial.open("wb") as file:
        while block := stream.read(BLOCK):  # the zip's checksum is verified at the member's end
            file.write(block)
    partial.replace(target)


@entry
def main(argv: Sequence[str]) -> None:
    """Fetches, unpacks, verifies."""
    from trainer.coco import verify

    p = argparse.ArgumentParser(prog="python -m trainer.coco.archives", description=__doc__)
    p.add_argument("folder", type=Path)
    p.add_argument("--no-download", action="store_true", help="use only the zips in FOLDER/archives")
    p.add_argument("--no-verify", action="store_true", help="do not look at every image afterwards")
    a = p.parse_args(argv)
    for line in prepare(a.folder, download=not a.no_download):
        print(line, flush=True)
    if not a.no_verify and verify.main([str(a.folder)]):
        raise TrainerError(f"{a.folder} was unpacked but is not as annotated")


if __name__ == "__main__":
    sys.exit(main())
