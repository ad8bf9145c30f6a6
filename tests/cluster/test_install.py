"""What the installer leaves of itself, and that it installs nothing but what the lock file names by checksum."""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from cluster.inventory import ROOT
from tests.conftest import PATIENCE_S


def sourced(script: Any, tmp_path: Path) -> Any:
    """Lines of shell after the installer's functions, with the machine's policy file somewhere harmless."""
    return subprocess.run(
        ["bash", "-c", f"source '{ROOT}/scripts/install.sh'; as_root=(); policy={tmp_path}/policy-rc.d; {script}"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def test_a_package_can_start_its_daemon_again_after_an_installation_that_was_killed(tmp_path: Path) -> None:
    """The next start of the installer takes away what the killed one left."""
    policy = tmp_path / "policy-rc.d"
    sourced("hold_daemons; kill -9 $$", tmp_path)
    assert "exit 101" in policy.read_text()

    done = sourced("release_daemons", tmp_path)
    assert 0 == done.returncode and not policy.exists(), done.stderr


def test_the_policy_of_an_installation_that_still_runs_stays(tmp_path: Path) -> None:
    """Another checkout's installer, which waits for its apt, takes it away neither at its start nor at its end."""
    sourced("hold_daemons; kill -9 $$", tmp_path)
    policy = tmp_path / "policy-rc.d"
    policy.write_text(re.sub(r" \d+$", f" {os.getpid()}", policy.read_text(), flags=re.M))
    done = sourced("release_daemons; hold_daemons", tmp_path)

    assert 0 == done.returncode and policy.exists(), done.stderr


def apt_in(folder: Path) -> dict[str, str]:
    """An environment in which apt-get keeps its lists below a folder, and has nothing to fetch."""
    (folder / "lists/partial").mkdir(parents=True)
    none = "".join(f'Dir::Etc::{part} "/dev/null";\n' for part in ("sourcelist", "sourceparts"))
    (folder / "apt.conf").write_text(f'Dir::State::Lists "{folder}/lists";\nDir::Cache "{folder}";\n{none}')
    return {**os.environ, "APT_CONFIG": str(folder / "apt.conf")}


def test_an_apt_that_runs_already_is_waited_for(tmp_path: Path) -> None:
    """A new host of Ubuntu begins with one of its own, and apt-get does not wait for who fetches lists."""
    environment = apt_in(tmp_path)
    words = f"source '{ROOT}/scripts/install.sh'; as_root=(); update_lists && echo fetched"
    with (tmp_path / "lists/lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        short = subprocess.run(
            ["bash", "-c", words.replace("update_lists", "apt_waits_s=0; update_lists")],
            env=environment, capture_output=True, text=True, timeout=PATIENCE_S,
        )  # fmt: skip
        waits = subprocess.Popen(
            ["bash", "-xc", words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert waits.stderr and waits.stdout
        seen = next((line for line in waits.stderr if re.match(r"\++ sleep", line)), "it did not wait")
    said, _ = waits.communicate(timeout=PATIENCE_S)

    assert 1 == short.returncode and "cannot be fetched: E: Could not get lock" in short.stderr, short
    assert "sleep" in seen and (0, "fetched\n") == (waits.returncode, said)


def test_horovod_is_built_with_the_open_mpi_that_launches_it(tmp_path: Path) -> None:
    """Amazon's, where it is, though it is on no PATH yet: the distribution's is not installed beside it."""
    (tmp_path / "bin").mkdir()
    for name in ("mpirun", "mpicxx"):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\necho {name} of Amazon\n")
        (tmp_path / "bin" / name).chmod(0o755)
    words = 'choose_mpi; stamp; echo "${packages[*]}"; mpirun --version; command -v mpicxx'
    words = f"lock='{ROOT}/requirements.lock'; {words}"
    words = f"venv='{ROOT}/.venv'; {words}"
    with_it, without = (
        sourced(f"amazon_mpi={tmp_path}/{folder}; {words}", tmp_path).stdout.splitlines() for folder in ("bin", "none")
    )

    assert ["mpirun of Amazon", f"{tmp_path}/bin/mpicxx"] == with_it[2:4]
    assert "openmpi" not in with_it[1] and "build-essential" in with_it[1] and "rsync" in with_it[1]
    assert "libopenmpi-dev openmpi-bin" in without[1]
    assert with_it[0] != without[0], "an environment that another Open MPI built is made anew"


def wheel(folder: Path, name: str) -> str:
    """A wheel of one module, and the line that locks it."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    files = {
        f"{name}.py": "",
        f"{name}-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{name}-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: us\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w") as file:
        for member, text in files.items():
            file.writestr(member, text)
        file.writestr(f"{name}-1.0.dist-info/RECORD", "".join(f"{member},,\n" for member in files))
    return f"{name}==1.0 --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The installers, a lock file of two small packages, which lie beside it, and Python's own environment."""
    (tmp_path / "scripts").mkdir()
    for script in (ROOT / "scripts").glob("install*.sh"):
        shutil.copy(script, tmp_path / "scripts")
    (tmp_path / "requirements.lock").write_text(f"{wheel(tmp_path, 'first')}\n{wheel(tmp_path, 'second')}  # source\n")
    return tmp_path


def installs(checkout: Path, script: str = "install.sh") -> Any:
    """Runs an installer there. It looks for no package of the system, which is another's test."""
    path = checkout / "scripts" / script
    path.write_text(path.read_text().replace("\nbegin_packages\n", "\n"))
    environment = {**os.environ, "DLAMI_CLUSTER_WHEELS": str(checkout)}
    return subprocess.run([path], env=environment, capture_output=True, text=True, timeout=PATIENCE_S)


def cut_off(checkout: Path, module: str, script: str = "install.sh") -> None:
    """An installation that is killed when pip has written all but this module."""
    pip = checkout / ".venv/bin/pip"
    kept = pip.read_text()
    pip.write_text("#!/bin/sh\nkill -9 $PPID\n")
    assert installs(checkout, script).returncode
    pip.write_text(kept)
    (found,) = checkout.glob(f".venv/lib/*/site-packages/{module}.py")
    found.unlink()


@pytest.mark.seconds
def test_what_an_installation_left_in_the_middle_of_a_package_is_whole_after_the_next(checkout: Path) -> None:
    """pip by itself takes a package for installed whose description it has written. ONNX's runtime comes by itself."""
    assert 0 == installs(checkout).returncode
    (checkout / ".venv/.installed").unlink()
    cut_off(checkout, "first")
    done = installs(checkout)

    assert 0 == done.returncode, done.stderr
    assert [*checkout.glob(".venv/lib/*/site-packages/first.py")] and (checkout / ".venv/.installed").exists()

    script = checkout / "scripts/install-onnx.sh"
    locked = wheel(checkout, "onnxruntime")
    script.write_text(re.sub(r"locked='[^']*'", f"locked='{locked}'", script.read_text()))
    assert "" == installs(checkout, script.name).stderr
    (checkout / ".venv/.onnx").unlink(missing_ok=True)
    cut_off(checkout, "onnxruntime", script.name)
    assert "" == installs(checkout, script.name).stderr
    assert [*checkout.glob(".venv/lib/*/site-packages/onnxruntime.py")]


def test_every_package_is_locked_by_checksum() -> None:
    """`scripts/lock.py` wrote them; names, versions and checksums, nothing else."""
    done = subprocess.run([ROOT / "scripts/lock.py", "--check"], capture_output=True, text=True, timeout=PATIENCE_S)

    assert (0, "without a checksum: none\n") == (done.returncode, done.stdout), done.stderr


@pytest.mark.parametrize(
    "line",
    re.findall(r"^.*pip\[@\]\}.*|^.*bin/pip\" (?:download|wheel).*", (ROOT / "scripts/install.sh").read_text(), re.M),
)
def test_the_installer_takes_nothing_by_name_alone(line: Any) -> None:
    """Each call of pip asks for checksums; what was built here from locked sources has none that anybody could know."""
    assert "--require-hashes" in line or "built.txt" in line or ".horovod" in line or '"$1/source"' in line, line


SETUP = """\
import os
from setuptools import setup
with open("horovod.py", "w") as file:
    file.write(f"BUILT = {os.getcwd()!r}")
setup(name="horovod", version="1.0", py_modules=["horovod"])
"""


@pytest.mark.seconds
def test_the_same_sources_are_the_same_wheel(tmp_path: Path) -> None:
    """A compiler writes down where it was: all build in one folder of the machine, which keeps nothing of it, and the
    cache, slow if it is on EFS, gets the wheel and its log."""
    (tmp_path / "setup.py").write_text(SETUP)
    (tmp_path / "PKG-INFO").write_text("Metadata-Version: 1.0\nName: horovod\nVersion: 1.0\n")
    source = tmp_path / "horovod-1.0.tar.gz"
    with tarfile.open(source, "w:gz") as tar:
        for name in ("setup.py", "PKG-INFO"):
            tar.add(tmp_path / name, f"horovod-1.0/{name}")
    locked = f"horovod==1.0 --hash=sha256:{hashlib.sha256(source.read_bytes()).hexdigest()}"
    (tmp_path / "lock").write_text(f"{locked}  # source\n")
    pip = f"export PIP_NO_INDEX=1 PIP_FIND_LINKS={tmp_path} SOURCE_DATE_EPOCH=1700000000"
    build = f"{pip}; venv='{ROOT}/.venv'; lock={tmp_path}/lock; builds={tmp_path}/builds; horovod_wheel"
    made = []
    for cache in ("one", "other"):
        done = sourced(f"cache={tmp_path}/{cache}; {build}", tmp_path)
        assert 0 == done.returncode, done.stderr
        made.append(Path(done.stdout.strip()).read_bytes())

    assert made[0] == made[1]
    assert ["build.log", "horovod-1.0-py3-none-any.whl", "horovod.txt"] == sorted(
        p.name for p in Path(done.stdout.strip()).parent.iterdir() if p.name != ".lock"
    )
    assert [".lock"] == [p.name for p in (tmp_path / "builds").iterdir()]


def test_horovod_is_built_for_the_cuda_that_tensorflow_has(tmp_path: Path) -> None:
    """The newest 12 of several, whatever the machine's default is; the wheels of two are not taken for one another."""
    for version in ("12.8", "12.10", "13.2"):
        (tmp_path / f"cuda-{version}/bin").mkdir(parents=True)
        (tmp_path / f"cuda-{version}/bin/nvcc").touch(mode=0o755)
    (tmp_path / "cuda-12.10/include").mkdir()
    (tmp_path / "cuda-12.10/include/nccl.h").touch()
    says = "build_horovod() { env | grep -E '^(CUDA|HOROVOD)' | sort; }; path() { echo ${PATH%%:*}; }; with_cuda path; with_cuda build_horovod"
    gpu, cpu, without = (
        sourced(f"export DLAMI_CLUSTER_VARIANT={kind}; cudas={tmp_path}{there}; {says}", tmp_path).stdout.splitlines()
        for kind, there in (("gpu", ""), ("cpu", ""), ("gpu", "/none"))
    )
    home = f"{tmp_path}/cuda-12.10"

    assert [
        f"CUDACXX={home}/bin/nvcc", f"CUDA_HOME={home}", f"HOROVOD_CUDA_HOME={home}", "HOROVOD_GPU_OPERATIONS=NCCL",
        f"HOROVOD_NCCL_HOME={home}",
    ] == gpu[1:]  # fmt: skip
    assert f"{home}/bin" == gpu[0]
    assert ["HOROVOD_GPU_OPERATIONS=NCCL"] == without[1:] and [] == cpu[1:]


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ((), "no CUDA 12 with nvcc"),
        (("cuda-13.0/bin/nvcc", "cuda-13.0/include/nccl.h"), "found: cuda-13.0 "),
        (("cuda-12.8/lib64/libcudart.so",), "found: cuda-12.8 "),
        (("cuda-12.8/bin/nvcc",), "no nccl.h"),
        (("cuda-12.8/bin/nvcc", "cuda-12.8/include/nccl.h"), ""),
        (("cuda-12.8/bin/nvcc", "include/nccl.h"), ""),
    ],
)
def test_an_image_that_horovod_cannot_be_built_on_is_refused_before_pip(
    tmp_path: Path, there: tuple[str, ...], said: str
) -> None:
    """What is missing and what to do, before anything is fetched; nodes that get a wheel need no compiler."""
    for name in there:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch(mode=0o755)
    begin = f"export DLAMI_CLUSTER_VARIANT=gpu; cudas={tmp_path} nccls={tmp_path}/include venv={tmp_path}/venv"
    stubs = 'find_python() { echo false; }; say() { echo "$*" >&2; }; stamp() { :; }'
    done = sourced(f"{begin}; {stubs}; install_python", tmp_path)
    with_wheels = sourced(f"{begin}; wheels={tmp_path}; check_cuda && echo goes on", tmp_path)

    assert done.returncode and not (tmp_path / "venv").exists()
    assert said in done.stderr and bool(said) == ("run this again" in done.stderr), done.stderr
    assert "goes on\n" == with_wheels.stdout


def test_a_file_with_another_checksum_is_refused(tmp_path: Path) -> None:
    """pip says so and installs nothing."""
    wheel = tmp_path / "other-1.0-py3-none-any.whl"
    wheel.write_bytes(b"not what was locked")
    (tmp_path / "lock").write_text(f"other==1.0 --hash=sha256:{hashlib.sha256(b'what was locked').hexdigest()}\n")
    words: list[Any] = [
        ROOT / ".venv/bin/pip",
        "install",
        "--no-index",
        "--find-links",
        tmp_path,
        "--require-hashes",
        "--no-deps",
    ]
    done = subprocess.run(
        [*words, "--target", tmp_path / "to", "-r", tmp_path / "lock"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )

    assert done.returncode and "DO NOT MATCH" in done.stderr
    assert not Path(tmp_path / "to").exists()
