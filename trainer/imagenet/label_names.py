"""Labels and numbers that the names of ImageNet's files and folders contain."""

import re
from collections.abc import Collection
from pathlib import PurePath

from trainer.common.files.errors import ConfigError

WORDNET_ID = re.compile(r"n[0-9]{8}")
_NUMBERED = re.compile(r"ILSVRC[0-9]{4}_val_([0-9]{8})(?![0-9])")
_IN_NAME = re.compile(r"(?<![0-9A-Za-z])n[0-9]{8}(?![0-9A-Za-z])")


def file_number(file: str) -> int:
    """Return the number in the name of a validation image, from 1; 0 for any other name."""
    found = _NUMBERED.match(PurePath(file).name)
    return int(found[1]) if found else 0


def folder_synsets(file: str, synsets: Collection[str]) -> list[str]:
    """Return the synsets whose folders contain a file, the outermost first, below the folder of its split.

    Raises:
        ConfigError: a folder has the name of a synset that is not in the list.
    """
    parts = PurePath(file).parts[1:-1]
    for part in parts:
        if WORDNET_ID.fullmatch(part) and part not in synsets:
            raise ConfigError(
                f"{file}: {part} is not in the list of synsets; complete the list or move the folder away"
            )
    return [part for part in parts if part in synsets]


def name_synset(file: str, synsets: Collection[str]) -> str | None:
    """Return the one listed synset in a file's name, as in n01440764_10026.JPEG; None for any other name."""
    found = {word for word in _IN_NAME.findall(PurePath(file).stem) if word in synsets}
    return found.pop() if len(found) == 1 else None
