"""Ranks in containers: by engines that are here, and by a stand-in for the one that is not to be had."""

import io
import os
import re
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.hosts import Host
from cluster.packages.interpreter import EnvironmentKind, EnvironmentRequest
from cluster.packages.ready import ready
from tests.conftest import PATIENCE_S
from tests.processes import begun
from tests.trainer.conftest import MPIRUN

HERE = (Host(rank=0, address="localhost", slots=2),)
IMAGE = "dlami-test:1"
SHOWS = 'echo "$OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE, $OWN, $(cat /marker), in $(pwd), $PYTHONPATH"'
LEAVES = "trap 'echo left; exit 7' USR1; echo begun; while :; do sleep 0.1; done"


def quiet(_text: str) -> None:
    """Says nothing."""


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shared folder with a job's code, in which ranks stand; an environment of theirs."""
    folder = tmp_path / "shared/code"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OWN", "a b")
    monkeypatch.setenv("PYTHONPATH", "/lent")
    return folder.parent


def root_file_system() -> bytes:
    """A tar with a shell, sleep, cat and a file that only the image has."""
    programs = [Path(found).resolve() for name in ("sh", "sleep", "cat") if (found := shutil.which(name))]
    said = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=True).stdout
    libraries = {Path(path) for path in re.findall(r"(/\S+) \(0x", said)}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", dereference=True) as tar:
        for path in (*programs, *libraries):
            tar.add(path, str(path))
        for name in ("sh", "sleep", "cat"):
            tar.add(Path(f"/bin/{name}"), f"bin/{name}")
        for folder in ("tmp", "etc"):
            about = tarfile.TarInfo(folder)
            about.type, about.mode = tarfile.DIRTYPE, 0o777
            tar.addfile(about)
        for name, text in (("marker", "image"), ("etc/passwd", "root:x:0:0::/:/bin/sh\n")):
            about = tarfile.TarInfo(name)
            about.size = len(text)
            tar.addfile(about, io.BytesIO(text.encode()))
    return buffer.getvalue()


def may_raise_limits() -> bool:
    """Whether this process has CAP_SYS_RESOURCE, as root has everywhere but in some sandboxes."""
    held = re.findall(r"CapEff:\s*(\w+)", Path("/proc/self/status").read_text())[0]
    return bool(int(held, 16) >> 24 & 1)


def live_within_limits(engine: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have podman raise none, which it does by itself, and take docker's word for locked memory away."""
    (folder / "containers.conf").write_text(
        '[containers]\ndefault_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]\n[engine]\nruntime = "runc"\n'
    )
    monkeypatch.setenv("CONTAINERS_CONF", str(folder / "containers.conf"))
    if engine == "docker":
        (folder / "bin/docker").write_text(
            '#!/bin/bash\nwords=()\nfor one; do [ "$one" = --ulimit=memlock=-1:-1 ] || words+=("$one"); done\n'
            f'exec {shutil.which("docker")} "${{words[@]}}"\n'
        )
        (folder / "bin/docker").chmod(0o755)


@pytest.fixture(params=["podman", "docker"])
def engine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An engine that this user may use, with the image; skipped without one. The other one is not asked."""
    name = str(request.param)
    works = [name, "info"]
    if not shutil.which(name) or subprocess.run(works, capture_output=True, timeout=PATIENCE_S).returncode:
        pytest.skip(f"{name} is not here, or not for this user: install it, and start its daemon if it has one")
    (tmp_path / "bin").mkdir()
    for other in {"podman", "docker"} - {name}:
        (tmp_path / "bin" / other).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / "bin" / other).chmod(0o755)
    if not may_raise_limits():
        live_within_limits(name, tmp_path, monkeypatch)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    subprocess.run(
        [name, "import", "--change", "ENV PYTHONPATH=/of/image", "-", IMAGE],
        input=root_file_system(),
        capture_output=True,
        check=True,
        timeout=PATIENCE_S,
    )
    yield name
    subprocess.run([name, "rmi", "--force", IMAGE], capture_output=True, timeout=PATIENCE_S)


@pytest.mark.long
def test_ranks_in_containers_of_a_real_engine(engine: str, shared: Path) -> None:
    """mpirun is outside; variables, folders, exit codes and SIGUSR1 pass, and nothing of a container is left."""
    found = ready(EnvironmentRequest(kind=EnvironmentKind.CONTAINER, what=IMAGE), None, HERE, str(shared), say=quiet)
    assert ({}, engine) == (found.lacking, found.interpreter.prefix[4])
    prefix = found.interpreter.prefix
    ranks = subprocess.run(
        [*MPIRUN, "-np", "2", *prefix, "sh", "-c", SHOWS], capture_output=True, text=True, timeout=PATIENCE_S
    )
    ended = subprocess.run([*prefix, "sh", "-c", "exit 9"], capture_output=True, text=True, timeout=PATIENCE_S)
    with begun([*prefix, "sh", "-c", LEAVES], stdout=subprocess.PIPE, text=True) as leaving:
        assert leaving.stdout
        assert "begun\n" == leaving.stdout.readline()
        while leaving.poll() is None:  # an engine passes signals on from a moment after the program's first word
            leaving.send_signal(signal.SIGUSR1)
            time.sleep(0.5)
        left = leaving.stdout.read()

    assert 0 == ranks.returncode, ranks.stderr
    assert [f"{n} of 2, a b, image, in {shared}/code, /lent:/of/image" for n in (0, 1)] == sorted(
        ranks.stdout.splitlines()
    )
    assert (9, 7, "left\n") == (ended.returncode, leaving.returncode, left), ended.stderr
    deadline = time.monotonic() + PATIENCE_S
    while subprocess.run([engine, "ps", "-aq"], capture_output=True, text=True).stdout and time.monotonic() < deadline:
        time.sleep(0.2)
    assert "" == subprocess.run([engine, "ps", "-aq"], capture_output=True, text=True).stdout


# What `apptainer exec` and `pull` of version 1.3 take of these options, and nothing else; the image is a folder's name.
APPTAINER = """\
#!/bin/bash
silent= gpus= binds=() folder=
usage() { echo "Error for command \\"$verb\\": unknown flag: $1" >&2; exit 1; }
[ "$1" != --version ] || { echo "apptainer version 1.3.4"; exit; }
case $1 in -s | --silent) silent=1; shift ;; -*) verb=apptainer; usage "$1" ;; esac
verb=$1; shift
while [[ ${1-} == -* ]]; do
    case $verb$1 in
        exec--nv) gpus=1; shift ;;
        exec--bind | exec-B) [ -e "${2%%:*}" ] || { echo "FATAL: mount source $2 doesn't exist" >&2; exit 255; }
            binds+=("$2"); shift 2 ;;
        exec--pwd | exec--cwd) folder=$2; shift 2 ;;
        pull--force | pull-F) shift ;;
        *) usage "$1" ;;
    esac
done
case $verb in
    pull) [[ $2 == docker://good/* ]] || { echo "FATAL:   While making image from oci registry: $2: not found" >&2; exit 255; }
        echo "$2" >"$1" ;;
    exec) [ -r "$1" ] || { echo "FATAL:   could not open image $1" >&2; exit 255; }
        for one in "${binds[@]}"; do case $folder/ in "$one"/*) seen=1 ;; esac; done
        [ -n "${seen-}" ] || { echo "FATAL:   $folder is not in the container" >&2; exit 255; }
        cd "$folder" && shift && exec "$@" ;;
    *) echo "Error: unknown command \\"$verb\\" for \\"apptainer\\"" >&2; exit 1 ;;
esac
"""


@pytest.fixture
def apptainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in is first on PATH, and no engine with a store works."""
    (tmp_path / "bin").mkdir()
    for name, text in (("apptainer", APPTAINER), *((other, "#!/bin/sh\nexit 1\n") for other in ("docker", "podman"))):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")


@pytest.mark.parametrize("image", ["file", "docker://good/image", "good/image"])
def test_ranks_below_apptainer_by_its_own_options(apptainer: None, shared: Path, image: str) -> None:
    """A file is run where it lies; an address becomes one on the master, once; what it is told it takes."""
    if image == "file":
        image = str(shared / "it.sif")
        Path(image).write_text("")
    for _ in range(2):
        found = ready(
            EnvironmentRequest(kind=EnvironmentKind.CONTAINER, what=image), None, HERE, str(shared), say=quiet
        )
        assert {} == found.lacking
        said = subprocess.run(
            [*found.interpreter.prefix, "sh", "-c", 'echo "$0 $(pwd)"; exit 3', "it"], capture_output=True, text=True
        )
        assert (3, f"it {shared}/code\n") == (said.returncode, said.stdout), said.stderr
