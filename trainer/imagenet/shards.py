"""Shard writer: the shard's planned content, writing it, and the facts file that proves it complete."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import google_crc32c

from trainer.common.checkpoints.checkpoint import write_atomically
from trainer.common.data import records
from trainer.common.data.jpeg import Unusable
from trainer.common.data.pictures import LARGEST_FILE
from trainer.common.files.errors import TrainerError
from trainer.imagenet.image import Jpeg, make_jpeg
from trainer.imagenet.raw import RawImage

FACTS_FOLDER = ".shards"  # beside the shards, until the manifest is written


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """Options for converting each image."""

    shorter_side: int = 480  # pixels; 0 keeps every size
    quality: int = 85  # JPEG quality of images that are encoded again
    check: str = "decode"  # of images that are not encoded again, one of image.CHECKS


@dataclass(frozen=True)
class ShardTask:
    """Task of writing one shard."""

    path: Path
    sources: tuple[RawImage, ...]
    options: ImageOptions

    def recipe(self) -> str:
        """Return a checksum of everything that decides the shard's content, except the files' bytes."""
        digest = hashlib.sha256(json.dumps(asdict(self.options)).encode())
        for source in self.sources:
            digest.update(f"{source.name}\0{source.label}\0{source.offset}\n".encode(errors="surrogateescape"))
        return digest.hexdigest()

    @property
    def facts_file(self) -> Path:
        """Return the path of the facts file, which exists once the shard is written."""
        return self.path.parent / FACTS_FOLDER / f"{self.path.name}.json"


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Facts of a written shard, and its repaired and rejected files."""

    name: str
    recipe: str
    records: int
    bytes: int
    sha256: str
    inputs: int  # files read
    input_bytes: int
    input_crc32c: int  # of all input files' bytes, one after the other
    repaired: dict[str, str] = field(default_factory=dict)  # file -> its original kind
    rejected: dict[str, str] = field(default_factory=dict)  # file -> why

    def facts(self) -> dict[str, object]:
        """Return the shard's entry in the manifest, which lists repaired and rejected files elsewhere."""
        return {k: v for k, v in asdict(self).items() if k not in ("repaired", "rejected", "recipe")}


def written(task: ShardTask) -> Shard | None:
    """Return the shard if an earlier run wrote it to the same recipe and it still has its size, else None."""
    try:
        shard = Shard(**json.loads(task.facts_file.read_text()))
        return shard if shard.recipe == task.recipe() and task.path.stat().st_size == shard.bytes else None
    except (OSError, ValueError, TypeError):
        return None


def write_shard(task: ShardTask) -> Shard:
    """Write one shard atomically.

    Raises:
        TrainerError: it cannot be written.
    """
    made = _Writing(task)
    partial = task.path.with_name(f".{task.path.name}.partial")
    digest, size, count = hashlib.sha256(), 0, 0
    try:
        with partial.open("wb", buffering=1 << 20) as file:
            for data in made.examples():
                framed = records.frame(data)
                digest.update(framed)
                size, count = size + file.write(framed), count + 1
        partial.replace(task.path)
        shard = Shard(
            name=task.path.name,
            recipe=task.recipe(),
            records=count,
            bytes=size,
            sha256=digest.hexdigest(),
            inputs=len(task.sources),
            input_bytes=made.input_bytes,
            input_crc32c=made.input_crc32c,
            repaired=made.repaired,
            rejected=made.rejected,
        )
        write_atomically(task.facts_file, json.dumps(asdict(shard)))
    except OSError as e:
        partial.unlink(missing_ok=True)
        raise TrainerError(
            f"{task.path} cannot be written: {e.strerror}; the shards before it stay, the same command "
            "goes on with this one"
        ) from e
    return shard


class _Writing:
    """Iterator over a shard's examples, which also collects the facts of their files."""

    def __init__(self, task: ShardTask) -> None:
        self._task = task
        self.repaired: dict[str, str] = {}
        self.rejected: dict[str, str] = {}
        self.input_bytes, self.input_crc32c = 0, 0

    def examples(self) -> Iterator[bytes]:
        """Yield one serialized example per usable file. Records the repaired and the rejected files."""
        options = self._task.options
        for source in self._task.sources:
            try:
                data = source.read(LARGEST_FILE + 1)
                self.input_bytes += len(data)
                self.input_crc32c = google_crc32c.extend(self.input_crc32c, data)
                jpeg = make_jpeg(data, options.shorter_side, options.quality, options.check)
            except Unusable as e:
                self.rejected[source.name] = str(e)
                continue
            except OSError as e:
                self.rejected[source.name] = f"cannot be read: {e.strerror}"
                continue
            if jpeg.repair:
                self.repaired[source.name] = jpeg.repair
            yield make_example(source, jpeg)


def make_example(source: RawImage, jpeg: Jpeg) -> bytes:
    """Return the record of one image, with the keys of TPU tools' imagenet_to_gcs and of the reference's resizer."""
    return records.example(
        {
            "image/height": jpeg.height,
            "image/width": jpeg.width,
            "image/colorspace": "RGB",
            "image/channels": 3,
            "image/class/label": source.label,
            "image/class/synset": source.synset,
            "image/class/text": source.synset,
            "image/format": "JPEG",
            "image/filename": source.filename.encode(errors="surrogateescape"),  # a file's name may be any bytes
            "image/encoded": jpeg.encoded,
        }
    )
