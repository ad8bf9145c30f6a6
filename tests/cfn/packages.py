"""Wheels and a project made from what is installed here, so that nodes can install both without a network."""

import io
import re
import tarfile
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

from cluster.inventory import ROOT

NOT_PACKED = ("INSTALLER", "REQUESTED", "RECORD", "direct_url.json")
# What the tasks of the stack import, and what builds Horovod's source distribution.
WANTED = ("invoke", "boto3", "troposphere", "fabric", "rich", "setuptools", "wheel")


def with_all_they_need(names: tuple[str, ...]) -> dict[str, Distribution]:
    """Installed distributions by name, with those they require."""
    found: dict[str, Distribution] = {}
    queue = list(names)
    while queue:
        name = re.sub(r"[-_.]+", "-", queue.pop()).lower()
        if name in found:
            continue
        found[name] = distribution(name)
        needs = map(Requirement, found[name].requires or [])
        queue += [r.name for r in needs if r.marker is None or r.marker.evaluate({"extra": ""})]
    return found


def repacked(one: Distribution, folder: Path) -> None:
    """The wheel that this distribution was installed from, near enough for pip."""
    tags = [line.split()[1] for line in (one.read_text("WHEEL") or "").splitlines() if line.startswith("Tag:")]
    files = {
        str(f): Path(str(f.locate())).read_bytes()
        for f in one.files or []
        if ".." not in f.parts and "__pycache__" not in f.parts and f.name not in NOT_PACKED
    }
    _wheel(folder, one.metadata["Name"], one.version, tags[-1], files)  # the last is for Python 3


def _wheel(folder: Path, name: str, version: str, tag: str, files: dict[str, bytes]) -> None:
    stem = f"{re.sub(r'[-_.]+', '_', name)}-{version}"
    info = next((f.split("/")[0] for f in files if ".dist-info/" in f), f"{stem}.dist-info")
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
        **files,
    }
    files[f"{info}/RECORD"] = "".join(f"{f},,\n" for f in [*files, f"{info}/RECORD"]).encode()
    with zipfile.ZipFile(folder / f"{stem}-{tag}.whl", "w") as wheel:
        for path, content in files.items():
            wheel.writestr(path, content)


def fill(folder: Path) -> str:
    """Fills a folder for `pip --find-links`; the lock file that means its contents.

    TensorFlow is an empty module there, since first boot only looks whether there is one, and Horovod a source
    distribution of a few lines, since building the real one takes minutes.
    """
    folder.mkdir(parents=True)
    known = with_all_they_need(WANTED)
    for one in known.values():
        repacked(one, folder)
    _wheel(folder, "tensorflow-cpu", "2.18.1", "py3-none-any", {"tensorflow/__init__.py": b""})
    with tarfile.open(folder / "horovod-0.28.1.tar.gz", "w:gz") as source:
        setup = (
            "from setuptools import setup\n"
            "setup(name='horovod', version='0.28.1', packages=['horovod', 'horovod.tensorflow'])\n"
        )
        modules = {"horovod/__init__.py": "", "horovod/tensorflow/__init__.py": "import tensorflow\n"}
        for path, text in {"setup.py": setup, **modules}.items():
            _add(source, f"horovod-0.28.1/{path}", text.encode())
    versions = [f"{name}=={one.version}" for name, one in sorted(known.items())]
    return "\n".join([*versions, "horovod==0.28.1", "tensorflow-cpu==2.18.1 # cpu", ""])


def project(lock: str) -> bytes:
    """This project as a tar of its code, with a lock file of its own and somebody's cluster file left in it."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for part in ("tasks.py", "cfn", "cluster", "scripts"):
            tar.add(ROOT / part, part, filter=lambda t: None if "__pycache__" in t.name else t)
        _add(tar, "requirements.lock", lock.encode())
        _add(tar, "cluster.toml", b'name = "of-another-seat"\n[ssh]\ngateway = "203.0.113.9"\n')
    return packed.getvalue()


def _add(tar: tarfile.TarFile, path: str, content: bytes) -> None:
    entry = tarfile.TarInfo(path)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))
