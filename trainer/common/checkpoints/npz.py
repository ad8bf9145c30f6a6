"""Safe reader of npz files from any source.

A file is read completely or refused by name. Nothing in it is ever executed.
"""

import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.common.files.errors import ConfigError

DAMAGED: tuple[type[Exception], ...] = (zipfile.BadZipFile, zlib.error, OSError, ValueError, KeyError, EOFError)
DAMAGED += (NotImplementedError, RuntimeError, MemoryError, SyntaxError, tokenize.TokenError, TypeError, OverflowError)
"""What NumPy and zipfile raise for a file that was cut or changed."""


def read(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays by name, without a `:0` at the end.

    Raises:
        ConfigError: the file is missing, not an npz, or damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:  # a file of one array is not a zip and raises
            if bad := archive.testzip():  # NumPy may stop before the end of a member, where its checksum is verified
                raise ValueError(f"{bad} in it is not as its checksum says")
        with np.load(path, allow_pickle=False) as file:
            found = {name.removesuffix(":0"): file[name] for name in file.files}
        if strange := [name for name, array in found.items() if not isinstance(array, np.ndarray)]:
            raise ValueError(f"{strange[0]} in it is no array")
        return found
    except DAMAGED as e:
        raise ConfigError(f"{path} cannot be read as weights (npz): {e or type(e).__name__}") from e
