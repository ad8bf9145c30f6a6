"""Sources of labels besides the synset lists: folders, file names, lists of files, Kaggle's tables, box annotations."""

import csv
import os
import re
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePath

from trainer.common.files.errors import ConfigError
from trainer.imagenet.label_names import WORDNET_ID, file_number, folder_synsets, name_synset
from trainer.imagenet.labels import LabelSource

SPLITS = {"train": ("train",), "validation": ("val", "validation")}
BOX_FOLDERS = ("Annotations/CLS-LOC", "Annotations", "annotations", "bbox", "bounding_boxes")
READERS = 16  # threads: a network file system answers each in a millisecond
_OBJECT = re.compile(rb"<object\b.*?<name>\s*([^<]*?)\s*</name>", re.DOTALL)


def other_sources(folder: Path, split: str, files: Sequence[str], synsets: Collection[str]) -> list[LabelSource]:
    """Return every source of labels except the lists that knows at least one of the files.

    Args:
        folder: the raw folder, or `Data/CLS-LOC` inside of Kaggle's.
        split: `train` or `validation`.

    Raises:
        ConfigError: a source cannot be read.
    """
    kaggle = folder.parents[1] if folder.parts[-2:] == ("Data", "CLS-LOC") else folder
    table = "LOC_train_solution.csv" if split == "train" else "LOC_val_solution.csv"
    tables = {place / table for place in (folder, kaggle, kaggle.parent if kaggle != folder else folder)}
    boxes = {place / name / part for place in (folder, kaggle) for name in BOX_FOLDERS for part in SPLITS[split]}
    sources = [
        *_path_sources(files, synsets),
        *(_kaggle_table(path, files) for path in sorted(tables) if path.is_file()),
        *(_boxes(path, files, synsets) for path in sorted(boxes) if path.is_dir()),
    ]
    return [source for source in sources if source.synsets]


def by_number(files: Sequence[str], synsets: Sequence[str], name: str) -> LabelSource:
    """Return the labels of numbered validation images from a list of all of them. Some of the images may be missing."""
    numbers = {file: file_number(file) for file in files}
    return LabelSource(name, {f: frozenset([synsets[n - 1]]) for f, n in numbers.items() if 0 < n <= len(synsets)})


def named_list(lines: Sequence[str], files: Sequence[str], path: Path) -> LabelSource | None:
    """Return the labels of a list of 'FILE SYNSET' lines; None for a list of synsets alone.

    Raises:
        ConfigError: two lines give one file different synsets.
    """
    pairs = [line.split() for line in lines]
    if not pairs or any(len(pair) != 2 for pair in pairs):
        return None
    told: dict[str, str] = {}
    for name, synset in pairs:
        if told.setdefault(PurePath(name).stem, synset) != synset:
            raise ConfigError(f"{path}: {name} stands there twice, as {told[PurePath(name).stem]} and as {synset}")
    return LabelSource(str(path), _by_stem(files, {stem: frozenset([synset]) for stem, synset in told.items()}))


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file.

    Raises:
        ConfigError: it cannot be read or is not text.
    """
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as e:
        raise ConfigError(f"{path} cannot be read: {e.strerror}") from e
    except UnicodeDecodeError as e:
        raise ConfigError(f"{path} is no text ({e.reason} at byte {e.start})") from e


def _path_sources(files: Sequence[str], synsets: Collection[str]) -> list[LabelSource]:
    folders = {file: found for file in files if (found := folder_synsets(file, synsets))}
    names = {file: name for file in files if (name := name_synset(file, synsets))}
    return [
        LabelSource("its folder", {file: frozenset([found[0]]) for file, found in folders.items()}),
        LabelSource("its inner folder", {f: frozenset([found[-1]]) for f, found in folders.items() if len(found) > 1}),
        LabelSource("its name", {file: frozenset([name]) for file, name in names.items()}),
    ]


def _by_stem(files: Sequence[str], told: Mapping[str, frozenset[str]]) -> dict[str, frozenset[str]]:
    return {file: told[stem] for file in files if (stem := PurePath(file).stem) in told}


def _kaggle_table(path: Path, files: Sequence[str]) -> LabelSource:
    """Return the labels of a table with the columns ImageId and PredictionString ('n01440764 1 2 3 4 ...')."""
    told: dict[str, frozenset[str]] = {}
    rows = csv.reader(read_lines(path))
    try:
        for number, row in enumerate(rows, start=1):
            if not row or row[0] == "ImageId":
                continue
            synsets = frozenset(word for word in row[1].split() if not word.lstrip("-").isdecimal())
            if not synsets:
                raise ConfigError(f"{path}:{number}: expected 'IMAGE,SYNSET X1 Y1 X2 Y2', found {','.join(row)!r:.80}")
            told[row[0]] = synsets
    except (csv.Error, IndexError) as e:
        raise ConfigError(f"{path}:{rows.line_num}: expected 'IMAGE,SYNSET X1 Y1 X2 Y2' ({e})") from e
    return LabelSource(str(path), _by_stem(files, told))


def _boxes(folder: Path, files: Sequence[str], listed: Collection[str]) -> LabelSource:
    """Return the labels of a folder of box annotations, one XML file per image. Other objects are ignored."""
    found: dict[str, list[Path]] = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            if name.endswith(".xml"):
                found.setdefault(name.removesuffix(".xml"), []).append(Path(parent, name))
    of_files = {file: path for file in files if (path := _box_file(found, file))}
    with ThreadPoolExecutor(READERS) as pool:
        objects = pool.map(_objects, of_files.values())
        synsets = [frozenset(n for n in names if n in listed or WORDNET_ID.fullmatch(n)) for names in objects]
    return LabelSource(str(folder), {file: s for file, s in zip(of_files, synsets, strict=True) if s})


def _box_file(found: Mapping[str, list[Path]], file: str) -> Path | None:
    """Return the path of an image's box annotation. Among files of equal names, the image's folder name decides."""
    paths = found.get(PurePath(file).stem, [])
    same = [path for path in paths if path.parent.name == PurePath(file).parent.name]
    return same[0] if len(same) == 1 else paths[0] if len(paths) == 1 else None


def _objects(path: Path) -> list[str]:
    try:
        return [name.decode("utf-8", "replace") for name in _OBJECT.findall(path.read_bytes())]
    except OSError as e:
        raise ConfigError(f"{path} cannot be read: {e.strerror}") from e
