"""Build of an environment on the master, at the path that it has on every host. A failed build is removed.

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
from cluster.packages.onhost import env_registry
from cluster.packages.recipe import LOCK, Recipe, environment_id
from cluster.user_folders import cache_folder

Say = Callable[[str], None]
INSTALLED = "installed.txt"  # versions that the first build installed, so that later builds install the same
_WORD_S = 20.0  # interval of progress messages during a build
_LOOK_S = 0.2
_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s'\"]+@")  # user and password in an address
_QUERY = re.compile(r"(https?://[^\s?'\"]+)\?[^\s'\"]+")  # query string of a signed address


@dataclass(frozen=True, kw_only=True)
class EnvironmentPaths:
    """Paths of an environment on a host's own disk, equal on all hosts."""

    place: Path  # folder of this user's environments
    id: str

    @property
    def folder(self) -> Path:
        """Return the environment's folder."""
        return self.place / self.id

    @property
    def log(self) -> Path:
        """Return the log of pip or uv, on the master."""
        return self.place / f"{self.id}.log"

    @property
    def lock(self) -> Path:
        """Return the lock file that a process holds while it builds or copies the environment, on the master."""
        return self.place / f"{self.id}.lock"


def own_place() -> Path:
    """Return the folder of this user's environments. It is in the cache folder, because they can be built again."""
    return Path(os.environ.get("DLAMI_CLUSTER_CACHE") or cache_folder()) / "environments"


def base_python() -> str:
    """Return the interpreter for new environments: the base of the project's own environment, as on all hosts."""
    return str(getattr(sys, "_base_executable", "") or sys.executable)


def place_of(recipe: Recipe) -> EnvironmentPaths:
    """Return the place of a recipe's environment, on this machine and on all that are like it."""
    place = own_place()
    kind = f"{sys.platform} {platform.machine()} {platform.libc_ver()}"
    return EnvironmentPaths(place=place, id=environment_id(recipe, python=sys.version, platform=kind, place=str(place)))


@contextlib.contextmanager
def held(where: EnvironmentPaths, say: Say) -> Iterator[int]:
    """Hold the environment's lock, after waiting for any other holder. Yield the lock's file descriptor."""
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


def is_whole(where: EnvironmentPaths) -> bool:
    """Return True if the environment is complete on this machine and its interpreter runs."""
    record = env_registry.read_record(str(where.place), where.id)
    return bool(record.get("whole")) and not env_registry.trouble(str(where.folder), str(record.get("python", "")))


def build(where: EnvironmentPaths, recipe: Recipe, constraints: str, lock: int, say: Say) -> None:
    """Build the environment; the caller holds its lock. Raises ClusterError with the installer's own message.

    A failed build leaves nothing but its log.

    constraints: the versions that an earlier build installed; "" for the first.
    """
    _check_python(recipe)
    env_registry.clear(str(where.place), where.id)
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
        if why := env_registry.declare(str(where.place), where.id, record)["why"]:
            raise ClusterError(f"the environment was built, and cannot be used: {why}")
    except BaseException as e:
        env_registry.clear(str(where.place), where.id)
        if isinstance(e, OSError):
            raise ClusterError(f"{where.folder} cannot be written: {e.strerror or e}") from e
        raise


def commands(folder: Path, source: Path, recipe: Recipe, *, uv: str | None, has_pip: bool) -> list[list[str]]:
    """Return the commands that build the environment in `folder` from the recipe in `source`.

    Raises ConfigError if a lock file needs uv and the master has none.
    """
    python, environment = base_python(), str(folder)
    if recipe.is_image:
        engine, address = recipe.text().splitlines()
        return [[engine, "pull", "--force", f"{environment}/{env_registry.IMAGE}", address]]
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


def installed(where: EnvironmentPaths) -> str:
    """Return the environment's packages as `name==version` lines; "" if its interpreter fails."""
    code = (
        "from importlib import metadata as m\n"
        "print('\\n'.join(sorted({d.metadata['Name'] + '==' + d.version for d in m.distributions()})))"
    )
    words = [str(where.folder / "bin/python"), "-I", "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    return done.stdout if done.returncode == 0 else ""


def complaint(lines: Sequence[str]) -> str:
    """Return the line of pip's or uv's output with the reason of the failure."""
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    if errors and errors[-1] != "Exception:":
        return errors[-1] if "from versions" not in "".join(errors[-2:-1]) else errors[-2]
    for n, line in enumerate(lines):
        if line.lstrip().startswith(("×", "error:")):  # uv prints the reason in the lines below
            words = " ".join(" ".join(lines[n : n + 6]).split())
            return re.sub(r"^(?:×|error:) ", "", re.sub(r"[╰├]─▶ ", "", words).replace(" cause: ", ": "))[:400]
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


def without_secrets(line: str) -> str:
    """Return a log line with users, passwords and query strings masked in its addresses."""
    return _QUERY.sub(r"\1?****", _IN_ADDRESS.sub("****@", line))


def uv_settings(pip_config: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Translate pip's configuration, as `pip config list` prints it, to uv's variables that are not yet set."""
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
    for section in ("global", "install", ":env:"):  # later sections take precedence
        for name, value in settings:
            variable = names.get(name.removeprefix(f"{section}."))
            if variable and not environment.get(variable):
                found[variable] = " ".join(value.strip("'\"").replace("\\n", " ").split())
    if "UV_FIND_LINKS" in found:
        found["UV_FIND_LINKS"] = found["UV_FIND_LINKS"].replace(" ", ",")
    return found


def _do(words: Sequence[str], source: Path, where: EnvironmentPaths, lock: int, say: Say) -> None:
    """Run one step of the build, with its command and output in the log. Raises ClusterError if it fails.

    The step inherits the lock. If this process is killed, the next builder waits until the step has ended, too.
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
    """Wait until the process has ended, and report its last output line from time to time."""
    began = spoken = time.monotonic()
    while child.poll() is None:
        time.sleep(_LOOK_S)
        if time.monotonic() - spoken > _WORD_S:
            spoken = time.monotonic()
            at = f": {lines[-1].strip()[:100]}" if lines else ""
            say(f"{spoken - began:.0f} s{at}")


def _environment(where: EnvironmentPaths, *, uses_uv: bool) -> dict[str, str]:
    """Return the installer's variables: this process's, so that pip's configuration, proxies and credentials apply."""
    mine = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PIP_USER")}
    mine |= {"GIT_TERMINAL_PROMPT": "0", "UV_PROJECT_ENVIRONMENT": str(where.folder), "UV_PYTHON_DOWNLOADS": "never"}
    if uses_uv and importlib.util.find_spec("pip"):
        words = [sys.executable, "-m", "pip", "config", "list"]
        said = subprocess.run(words, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        mine |= uv_settings(said.stdout if said.returncode == 0 else "", mine)
    return mine


def _uv() -> str | None:
    """Return the path of uv. Its installers' folders are searched, too: not every session has them on PATH."""
    own = os.pathsep.join(str(Path(p).expanduser()) for p in ("~/.local/bin", "~/.cargo/bin"))
    return shutil.which("uv") or shutil.which("uv", path=own)


def _has_hashes(recipe: Recipe) -> bool:

    return "--hash=" in recipe.text()


def _check_python(recipe: Recipe) -> None:
    """Raise ConfigError if the recipe requires another Python. Skipped if `packaging` is not installed."""
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
