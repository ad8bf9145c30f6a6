"""Archives that tests are made of."""

import io
import tarfile
from collections.abc import Mapping


def tar_of(files: Mapping[str, bytes], mode: str = "w") -> bytes:
    """A tar of these files, by default uncompressed."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=mode) as tar:  # type: ignore[call-overload]
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return made.getvalue()
