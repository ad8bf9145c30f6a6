"""Check that a set's images exist, by one listing of each folder."""

from collections.abc import Iterable
from pathlib import Path

from trainer.coco.annotations import AnnotatedImage
from trainer.common.files.errors import ConfigError
from trainer.common.files.plural import counted


def check_files(pictures: Iterable[AnnotatedImage], file: Path) -> None:
    """Raise ConfigError if pictures' files are missing. The files are not opened.

    Args:
        file: the annotation file that names them.

    Raises:
        ConfigError: the message counts the missing files, names the first, and suggests a similar name.
    """
    listed: dict[Path, set[str]] = {}
    missing: list[Path] = []
    total = 0
    for picture in pictures:
        total += 1
        folder = picture.path.parent
        if folder not in listed:
            listed[folder] = _names(folder)
        if picture.path.name not in listed[folder]:
            missing.append(picture.path)
    if missing:
        first = missing[0]
        raise ConfigError(
            f"{file}: {len(missing)} of {counted(total, 'image')} are not there, the first: {first}"
            f"{_hint(first, listed[first.parent])}: bring them, or take them out of the annotations"
        )


def _names(folder: Path) -> set[str]:
    try:
        return {path.name for path in folder.iterdir()}
    except (FileNotFoundError, NotADirectoryError):
        return set()
    except OSError as e:
        raise ConfigError(f"{folder} cannot be listed: {e.strerror}") from e


def _hint(path: Path, names: set[str]) -> str:
    if "\\" in path.name:
        return " (its name has a backslash, as Windows writes paths: write / in file_name)"
    if alike := next((name for name in sorted(names) if name.casefold() == path.name.casefold()), ""):
        return f" ({alike} is there: capitals differ)"
    if alike := next((name for name in sorted(names) if Path(name).stem == path.stem), ""):
        return f" ({alike} is there: the ending differs)"
    return "" if names else f" ({path.parent} is missing or empty)"
