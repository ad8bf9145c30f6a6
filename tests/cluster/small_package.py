"""Packages made on the spot, so that no test needs an index: a wheel of one module, a source that is never built."""

import io
import tarfile
import zipfile
from pathlib import Path


def wheel(folder: Path, name: str, version: str = "1.0", module: str = "VALUE = 'here'\n") -> Path:
    """A wheel in the folder whose one module has the package's name."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": module,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as packed:
        for below, text in files.items():
            packed.writestr(zipfile.ZipInfo(below), text)  # the same bytes each time
    return path


def never_ending_source(folder: Path, name: str, started: Path) -> Path:
    """A source package in the folder whose builder writes its process into `started`, and goes on for ten minutes."""
    path = folder / f"{name}-1.0.tar.gz"
    files = {
        "pyproject.toml": (
            f'[build-system]\nrequires = []\nbuild-backend = "{name}"\nbackend-path = ["."]\n'
            f'[project]\nname = "{name}"\nversion = "1.0"\n'
        ),
        f"{name}.py": (
            "import os, pathlib, time\n"
            "def build_wheel(*given, **more):\n"
            f"    pathlib.Path({str(started)!r}).write_text(str(os.getpid()))\n"
            "    time.sleep(600)\n"
            "get_requires_for_build_wheel = prepare_metadata_for_build_wheel = build_wheel\n"
        ),
    }
    with tarfile.open(path, "w:gz") as packed:
        for below, text in files.items():
            entry = tarfile.TarInfo(f"{name}-1.0/{below}")
            entry.size = len(text)
            packed.addfile(entry, io.BytesIO(text.encode()))
    return path
