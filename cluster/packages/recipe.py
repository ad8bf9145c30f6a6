"""Recipe of an environment: the file that lists its packages and those that it refers to, with their content."""

import base64
import hashlib
import os
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.errors import ConfigError
from cluster.packages.interpreter import EnvironmentKind, EnvironmentRequest

LOCK = "uv.lock"
CONTAINER = "container"  # main file of an image's recipe: the engine that fetches it, and its address
PROJECT = "pyproject.toml"
MOST_BYTES = 50 << 20  # largest file of a recipe; the same limit as for code
_ARCHIVE = (".whl", ".tar.gz", ".zip", ".tar.bz2", ".tgz")
_REFERS = re.compile(r"(?:-r|-c|--requirement|--constraint)(?:\s+|=)?(\S.*)")
_EDITABLE = re.compile(r"(?:-e|--editable)(?:\s|=)")
_LINKS = re.compile(r"(?:-f|--find-links)(?:\s+|=)(\S+)")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Files of a recipe, and which of them is installed."""

    main: str  # key of `files`
    files: Mapping[str, str]  # relative path -> content in base64
    requires_python: str = ""  # as pyproject.toml has it, like ">=3.11"

    @property
    def is_lock(self) -> bool:
        """Return True if only uv can read it."""
        return self.main == LOCK

    @property
    def is_image(self) -> bool:
        """Return True if it is a container image."""
        return self.main == CONTAINER

    def text(self) -> str:
        """Return the text of the main file."""
        return base64.b64decode(self.files[self.main]).decode()

    def digest(self) -> str:
        """Return the hash of all its content."""
        whole = hashlib.sha256(f"{self.main}\0{self.requires_python}\0".encode())
        for name in sorted(self.files):
            whole.update(f"{name}\0{self.files[name]}\0".encode())
        return whole.hexdigest()

    def write(self, folder: Path) -> None:
        """Write the files into an existing folder."""
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(base64.b64decode(content))


def recipe_of(wanted: EnvironmentRequest) -> Recipe | None:
    """Return the recipe to send to the master, from this machine's files; None if none is needed.

    Raises ConfigError.
    """
    return read_recipe(Path(wanted.what).expanduser()) if wanted.kind is EnvironmentKind.REQUIREMENTS else None


def read_recipe(path: Path) -> Recipe:
    """Read the recipe from a requirements file, a uv.lock or a pyproject.toml. Raises ConfigError."""
    if path.name == LOCK:
        return _of_lock(path)
    if path.name == PROJECT:
        return _of_project(path)
    return _Requirements(path).recipe()


def image_recipe(engine: str, address: str) -> Recipe:
    """Return the recipe of an image that an engine fetches into a file."""
    return Recipe(main=CONTAINER, files=_encoded({CONTAINER: f"{engine}\n{address}\n".encode()}))


def environment_id(recipe: Recipe, *, python: str, platform: str, place: str) -> str:
    """Return the environment's id: a hash of its content, Python, kind of machine and parent folder."""
    return hashlib.sha256("\0".join((recipe.digest(), python, platform, place)).encode()).hexdigest()[:16]


class _Requirements:
    """Requirements file, with those that it names and the packages beside it."""

    def __init__(self, main: Path) -> None:
        self._main = Path(os.path.abspath(main))  # noqa: PTH100 - links stay what they are
        self._texts: dict[Path, bytes] = {}
        self._packages: dict[str, bytes] = {}

    def recipe(self) -> Recipe:
        self._take(self._main, str(self._main.name))
        root = Path(os.path.commonpath([p.parent for p in self._texts]))
        files = {str(p.relative_to(root)): data for p, data in self._texts.items()}
        if clash := files.keys() & self._packages.keys():
            raise ConfigError(f"{min(clash)} is both a list of packages and a package")
        return Recipe(main=str(self._main.relative_to(root)), files=_encoded({**files, **self._packages}))

    def _take(self, path: Path, said: str) -> None:
        if path in self._texts:
            return
        self._texts[path] = _read(path, said)
        for number, line in logical_lines(_text(self._texts[path], said)):
            where = f"{said}:{number}"
            if refers := _REFERS.fullmatch(line):
                other = refers[1].strip().strip("'\"")
                if "://" not in other:
                    self._take(Path(os.path.normpath(path.parent / other)), _beside(said, other))
            else:
                self._look_at(path.parent, line, where)

    def _look_at(self, folder: Path, line: str, where: str) -> None:
        """Add the package that a line names by its file. Raises ConfigError if the master could not have it."""
        if _EDITABLE.match(line):
            raise ConfigError(
                f"{where}: {line}: the program's own code goes to the hosts by itself: leave the line out, and give "
                "--env PYTHONPATH=src where its packages are not in its own folder"
            )
        if (links := _LINKS.match(line)) and "://" not in links[1] and not links[1].startswith("/"):
            raise ConfigError(
                f"{where}: {links[1]} is a folder of this machine, and packages are installed on the master: put it "
                "onto the shared folder and give its absolute path"
            )
        name = line.partition(";")[0].split(" --")[0].strip()
        if not _is_path(name) or name.startswith("/"):
            return
        below = os.path.normpath(name)
        found = next((p for p in (folder / below, Path(below)) if p.exists()), None)
        if found is None:
            raise ConfigError(f"{where}: {name}: there is no such file")
        if found.is_dir() or below.startswith(".."):
            raise ConfigError(
                f"{where}: {name} is a folder of this machine or outside the file's own: build a wheel of it "
                f"({shlex.join(['pip', 'wheel', '--no-deps', name])}) and name that, beside {where.partition(':')[0]}"
            )
        self._packages[below] = _read(found, name)


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the non-empty lines of a requirements file with their numbers: continuations joined, comments removed."""
    joined, begin = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        begin = begin or number
        if line.endswith("\\") and not line.lstrip().startswith("#"):
            joined += line[:-1]
            continue
        whole = re.sub(r"(^|\s)#.*$", "", joined + line).strip()
        if whole:
            yield begin, whole
        joined, begin = "", 0
    if joined.strip():
        yield begin, joined.strip()


def _of_project(path: Path) -> Recipe:
    """Return the recipe of a project's dependencies. The project itself is code, which is sent to the hosts anyway."""
    found = _toml(path)
    project = found.get("project")
    if not isinstance(project, dict) or "dependencies" in project.get("dynamic", ()):
        raise ConfigError(
            f"{path}: [project] does not list its dependencies: write them into a requirements.txt, such as with "
            "'pip freeze' or 'poetry export', and give that"
        )
    if found.get("tool", {}).get("uv", {}).get("sources"):
        raise ConfigError(f"{path}: [tool.uv.sources] is read by uv alone: make a lock with 'uv lock' and give uv.lock")
    lines = project.get("dependencies", [])
    if not lines:
        raise ConfigError(f"{path}: [project] has no dependencies: nothing is to be installed, so leave the option out")
    text = "".join(f"{line}\n" for line in lines)
    return Recipe(
        main="requirements.txt",
        files=_encoded({"requirements.txt": text.encode()}),
        requires_python=project.get("requires-python", ""),
    )


def _of_lock(path: Path) -> Recipe:
    project = path.with_name(PROJECT)
    if not project.is_file():
        raise ConfigError(f"{path}: there is no {PROJECT} beside it, which uv needs to read it")
    lock = _toml(path)
    for package in lock.get("package", []):
        source = package.get("source", {})
        folder = next((source[k] for k in ("editable", "virtual", "directory", "path") if k in source), ".")
        if folder != ".":
            raise ConfigError(
                f"{path}: {package.get('name')} comes from {folder}, a path of this machine: build a wheel of it and "
                f"give a requirements.txt that names it ('uv export --frozen -o requirements.txt')"
            )
    return Recipe(
        main=LOCK,
        files=_encoded({LOCK: _read(path, LOCK), PROJECT: _read(project, PROJECT)}),
        requires_python=str(lock.get("requires-python", "")),
    )


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_text(_read(path, str(path)), str(path)))
    except tomllib.TOMLDecodeError as e:
        raise ConfigError(f"{path}: {str(e).lower()}") from e


def _read(path: Path, said: str) -> bytes:
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise ConfigError(
                f"{said}: {size:,} bytes are too many to go along: put it onto the shared folder, and name it by its "
                "absolute path there"
            )
        return path.read_bytes()
    except OSError as e:
        raise ConfigError(f"{said}: {(e.strerror or 'cannot be read').lower()}") from e


def _text(data: bytes, said: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{said}: is no text in UTF-8") from None


def _is_path(name: str) -> bool:
    """Return True if pip would take the name for a file or folder, not for a package."""
    if " @ " in name or "://" in name:
        return False
    return name in (".", "..") or name.startswith(("./", "../", "/", "~")) or name.endswith(_ARCHIVE)


def _beside(said: str, other: str) -> str:
    return os.path.normpath(Path(said).parent / other)


def _encoded(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: base64.b64encode(data).decode() for name, data in files.items()}
