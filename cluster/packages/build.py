"""An environment built on the master, at the very path at which every host has it: whole, or not there.

What pip and uv write into an environment names its own path, so it is never built elsewhere and moved.
"""

import contextlib
import fcntl
import importlib.util
import os
import platform
import re
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ClusterError, ConfigError
from cluster.jobs.record import now
from cluster.packages.onhost import shelf
from cluster.packages.recipe import LOCK, Recipe, environment_id
from cluster.user_folders import cache_folder

Say = Callable[[str], None]
INSTALLED = "installed.txt"  # what the first build of an environment came to, so that another comes to the same
_WORD_S = 20.0  # how often a build that goes on says what it does
_LOOK_S = 0.2
_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s'\"]+@")  # a user and password
_QUERY = re.compile(r"(https?://[^\s?'\"]+)\?[^\s'\"]+")  # what signed addresses carry


@dataclass(frozen=True, kw_only=True)
class Place:
    """An environment's paths on a host's own disk, equal on all of them."""

    place: Path  # of this user's environments
    id: str

    @property
    def folder(self) -> Path:
        """Itself."""
        return self.place / self.id

    @property
    def log(self) -> Path:
        """All that pip or uv said, on the master."""
        return self.place / f"{self.id}.log"

    @property
    def lock(self) -> Path:
        """Held by who builds or brings it, on the master."""
        return self.place / f"{self.id}.lock"


def own_place() -> Path:
    """Where this user's environments are: in the cache folder, as all that can be made again."""
    return Path(os.environ.get("DLAMI_CLUSTER_CACHE") or cache_folder()) / "environments"


def base_python() -> str:
    """The interpreter that environments are made of: the one below the project's own environment, as on all hosts."""
    return str(getattr(sys, "_base_executable", "") or sys.executable)


def place_of(recipe: Recipe) -> Place:
    """Where the environment of a recipe belongs on this machine and all that are like it."""
    place = own_place()
    kind = f"{sys.platform} {platform.machine()} {platform.libc_ver()}"
    return Place(place=place, id=environment_id(recipe, python=sys.version, platform=kind, place=str(place)))


@contextlib.contextmanager
def held(where: Place, say: Say) -> Iterator[int]:
    """Hold an environment: who builds it at the same time is waited for. The descriptor of its lock."""
    try:
        where.place.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(where.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as e:
        raise ClusterError(f"environments are kept in {where.place}, which cannot be written: {e.strerror}") from e
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another one builds or copies it at this moment; waiting for that")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
    finally:
        os.close(lock)


def is_whole(where: Place) -> bool:
    """Whether it is there on this machine, and runs."""
    record = shelf.read_record(str(where.place), where.id)
    return bool(record.get("whole")) and not shelf.trouble(str(where.folder), str(record.get("python", "")))


def build(where: Place, recipe: Recipe, constraints: str, lock: int, say: Say) -> None:
    """Build it; its lock is held. Raises ClusterError with the installer's own line, and leaves nothing but its log.

    constraints: the versions that an earlier build came to, "" for the first.
    """
    _check_python(recipe)
    shelf.clear(str(where.place), where.id)
    source = where.folder / "share/dlami"
    try:
        source.mkdir(parents=True)
        recipe.write(source)
        if constraints and not _has_hashes(recipe):
            (source / INSTALLED).write_text(constraints)
        began = time.monotonic()
        steps = commands(where.folder, source, recipe, uv=_uv(), has_pip=bool(importlib.util.find_spec("pip")))
        where.log.unlink(missing_ok=True)
        for words in steps:
            _do(words, source, where, lock, say)
        record = {
            "build": secrets.token_hex(8),
            "what": recipe.main,
            "python": sys.version,
            "made": now(),
            "seconds": round(time.monotonic() - began, 1),
        }
        if why := shelf.declare(str(where.place), where.id, record)["why"]:
            raise ClusterError(f"the environment was built, and cannot be used: {why}")
    except BaseException as e:
        shelf.clear(str(where.place), where.id)
        if isinstance(e, OSError):
            raise ClusterError(f"{where.folder} cannot be written: {e.strerror or e}") from e
        raise


def commands(folder: Path, source: Path, recipe: Recipe, *, uv: str | None, has_pip: bool) -> list[list[str]]:
    """What builds the environment in `folder` from the recipe that lies in `source`. Raises ConfigError without uv."""
    python, environment = base_python(), str(folder)
    if recipe.is_image:
        engine, address = recipe.text().splitlines()
        return [[engine, "pull", "--force", f"{environment}/{shelf.IMAGE}", address]]
    if recipe.is_lock:
        if not uv:
            raise ConfigError(
                f"{LOCK} is read by uv, which the master does not have: install it there, or give what "
                "'uv export --frozen --no-emit-project -o requirements.txt' writes here"
            )
        sync = ["sync", "--frozen", "--no-install-project", "--no-dev", "--no-progress", "--compile-bytecode"]
        return [[uv, "venv", "--no-project", "--allow-existing", "--python", python, environment], [uv, *sync]]
    listed = ["-r", recipe.main, *(["-c", INSTALLED] if (source / INSTALLED).exists() else [])]
    inside = f"{environment}/bin/python"
    if uv:
        install = ["pip", "install", "--python", inside, "--no-progress", "--compile-bytecode", *listed]
        return [[uv, "venv", "--no-project", "--allow-existing", "--python", python, environment], [uv, *install]]
    quiet = ["install", "--no-input", "--disable-pip-version-check", "--progress-bar", "off", *listed]
    if not has_pip:
        return [[python, "-m", "venv", environment], [inside, "-m", "pip", *quiet]]
    pip = [sys.executable, "-m", "pip", "--python", inside]
    return [[python, "-m", "venv", "--without-pip", environment], [*pip, *quiet]]


def installed(where: Place) -> str:
    """What is in it, as `name==version` lines."""
    code = (
        "from importlib import metadata as m\n"
        "print('\\n'.join(sorted({d.metadata['Name'] + '==' + d.version for d in m.distributions()})))"
    )
    words = [str(where.folder / "bin/python"), "-I", "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    return done.stdout if done.returncode == 0 else ""


def complaint(lines: Sequence[str]) -> str:
    """The line of pip or uv that says why it failed."""
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    if errors and errors[-1] != "Exception:":
        return errors[-1] if "from versions" not in "".join(errors[-2:-1]) else errors[-2]
    for n, line in enumerate(lines):
        if line.lstrip().startswith(("×", "error:")):  # uv tells the reason in the lines below
            words = " ".join(" ".join(lines[n : n + 6]).split())
            return re.sub(r"^(?:×|error:) ", "", re.sub(r"[╰├]─▶ ", "", words).replace(" cause: ", ": "))[:400]
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


def without_secrets(line: str) -> str:
    """A line of a log without the user and password of an address, or what a signed one carries."""
    return _QUERY.sub(r"\1?****", _IN_ADDRESS.sub("****@", line))


def uv_settings(pip_config: str, environment: Mapping[str, str]) -> dict[str, str]:
    """What uv is to know of pip's own configuration, as `pip config list` prints it; what it was told itself wins."""
    names = {
        "index-url": "UV_DEFAULT_INDEX",
        "extra-index-url": "UV_INDEX",
        "find-links": "UV_FIND_LINKS",
        "no-index": "UV_NO_INDEX",
        "constraint": "UV_CONSTRAINT",
        "cert": "SSL_CERT_FILE",
        "trusted-host": "UV_INSECURE_HOST",
        "proxy": "ALL_PROXY",
    }
    found: dict[str, str] = {}
    settings = [line.partition("=")[::2] for line in pip_config.splitlines()]
    for section in ("global", "install", ":env:"):  # the later wins
        for name, value in settings:
            variable = names.get(name.removeprefix(f"{section}."))
            if variable and not environment.get(variable):
                found[variable] = " ".join(value.strip("'\"").replace("\\n", " ").split())
    if "UV_FIND_LINKS" in found:
        found["UV_FIND_LINKS"] = found["UV_FIND_LINKS"].replace(" ", ",")
    return found


def _do(words: Sequence[str], source: Path, where: Place, lock: int, say: Say) -> None:
    """One step of the build, its words and what it says in the log. Raises ClusterError if it fails.

    The lock goes along: if this process is killed, who comes next waits until the step has ended, too.
    """
    lines: list[str] = []
    environment = _environment(where, uses_uv=Path(words[0]).name == "uv")
    where.log.touch(mode=0o600)
    with where.log.open("a") as log:
        print("$", *words, file=log, flush=True)
        child = subprocess.Popen(
            words,
            cwd=source,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            pass_fds=[lock],
        )

        def read() -> None:
            assert child.stdout
            for line in child.stdout:
                lines.append(without_secrets(line.rstrip()))
                print(lines[-1], file=log, flush=True)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            _wait(child, lines, say)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            raise
        finally:
            reader.join(5)
    if child.returncode:
        raise ClusterError(f"{complaint(lines)}\nnothing of it was kept; all that was said: {where.log} on the master")


def _wait(child: "subprocess.Popen[str]", lines: Sequence[str], say: Say) -> None:
    """Until it has ended; now and then say what it does."""
    began = spoken = time.monotonic()
    while child.poll() is None:
        time.sleep(_LOOK_S)
        if time.monotonic() - spoken > _WORD_S:
            spoken = time.monotonic()
            at = f": {lines[-1].strip()[:100]}" if lines else ""
            say(f"{spoken - began:.0f} s{at}")


def _environment(where: Place, *, uses_uv: bool) -> dict[str, str]:
    """The installer's variables: this process's own, so that pip's configuration, proxies and credentials hold."""
    mine = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PIP_USER")}
    mine |= {"GIT_TERMINAL_PROMPT": "0", "UV_PROJECT_ENVIRONMENT": str(where.folder), "UV_PYTHON_DOWNLOADS": "never"}
    if uses_uv and importlib.util.find_spec("pip"):
        words = [sys.executable, "-m", "pip", "config", "list"]
        said = subprocess.run(words, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        mine |= uv_settings(said.stdout if said.returncode == 0 else "", mine)
    return mine


def _uv() -> str | None:
    """Where uv is on this machine; its installer's folder is not on the PATH of every session."""
    own = os.pathsep.join(str(Path(p).expanduser()) for p in ("~/.local/bin", "~/.cargo/bin"))
    return shutil.which("uv") or shutil.which("uv", path=own)


def _has_hashes(recipe: Recipe) -> bool:

    return "--hash=" in recipe.text()


def _check_python(recipe: Recipe) -> None:
    """Raises ConfigError for a recipe that wants another Python, as far as that can be judged here."""
    if not recipe.requires_python:
        return
    try:
        from packaging.specifiers import InvalidSpecifier, SpecifierSet
    except ImportError:
        return
    try:
        fits = SpecifierSet(recipe.requires_python).contains(platform.python_version(), prereleases=True)
    except InvalidSpecifier as e:
        raise ConfigError(f"requires-python is {recipe.requires_python!r}, which is no range of versions") from e
    if not fits:
        raise ConfigError(
            f"requires-python is {recipe.requires_python}, and the hosts have {platform.python_version()}: make the "
            "environment there with another Python, and give it with --venv or --conda"
        )
