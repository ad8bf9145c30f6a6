"""A program's packages: what is sent, what names an environment, how it is built, what is said when it cannot be."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import ClusterError, ConfigError
from cluster.hosts import Host
from cluster.inventory import ROOT
from cluster.jobs.client.resume import next_attempt
from cluster.jobs.process import process_id
from cluster.jobs.record import Job, JobStatus, JobView
from cluster.jobs.state import JobState
from cluster.packages import build as building
from cluster.packages import conda
from cluster.packages.build import build, commands, held, is_whole, own_place
from cluster.packages.build import without_secrets as shown
from cluster.packages.command_parser import what_runs
from cluster.packages.env_list import Environment, Stock, chosen
from cluster.packages.import_check import trouble
from cluster.packages.interpreter import EnvironmentKind, EnvironmentRequest, Interpreter
from cluster.packages.onhost import env_registry
from cluster.packages.onhost.contained import RankFacts, words
from cluster.packages.ready import Ready, ready
from cluster.packages.recipe import LOCK, Recipe, environment_id, read_recipe
from cluster.typed import from_json
from tests.cluster.programs import CLUSTER, a_program
from tests.cluster.small_package import never_ending_source, wheel
from tests.conftest import PATIENCE_S, wait_for

HERE = (Host(rank=0, address="localhost", slots=2),)
Made = Callable[..., Path]


def quiet(_text: str) -> None:
    """Says nothing."""


@pytest.fixture
def folder(tmp_path: Path) -> Made:
    """A program's folder with these files."""

    def made(files: dict[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / "program" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path / "program"

    return made


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shared folder, and a cache of this test's own, on this machine alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("DLAMI_CLUSTER_CACHE", raising=False)
    monkeypatch.setattr(building, "_uv", lambda: None)  # whether this machine has one is not what is tried
    (tmp_path / "shared").mkdir()
    return tmp_path / "shared"


def recipe_of(path: Path, *lines: str) -> Recipe:
    """The recipe of a requirements file with these lines, and no index."""
    path.mkdir(exist_ok=True)
    (path / "requirements.txt").write_text("".join(f"{line}\n" for line in ("--no-index", *lines)))
    return read_recipe(path / "requirements.txt")


def made_ready(recipe: Recipe, shared: Path, *, changes: bool = True) -> Ready:
    """The environment on this machine."""
    wanted = EnvironmentRequest(kind=EnvironmentKind.REQUIREMENTS, what="requirements.txt")
    return ready(wanted, recipe, HERE, str(shared), changes=changes, say=quiet)


# What is asked for -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("-e .", "r.txt:2: -e .: the program's own code goes to the hosts by itself"),
        ("--editable=git+https://example.com/x", "the program's own code"),
        ("./lib", "build a wheel of it"),
        ("./nothing-1.0-py3-none-any.whl", "there is no such file"),
        ("-f wheels", "is a folder of this machine, and packages are installed on the master"),
        ("-r other.txt", "other.txt: no such file"),
    ],
)
def test_what_the_master_could_not_have_is_refused(folder: Made, line: str, why: str) -> None:
    """A path of the operator's machine in a list is told by its line before anything is sent."""
    top = folder({"r.txt": f"numpy\n{line}\n", "lib/setup.py": ""})
    with pytest.raises(ConfigError) as refused:
        read_recipe(top / "r.txt")
    assert why in str(refused.value)


def test_a_project_gives_its_dependencies(folder: Made) -> None:
    """The list in [project], and the Python that it wants; what only its own builder knows is refused."""
    top = folder(
        {"pyproject.toml": '[project]\nname="x"\nrequires-python=">=3.10"\ndependencies=["numpy<3", "rich"]\n'}
    )
    recipe = read_recipe(top / "pyproject.toml")
    assert ("numpy<3\nrich\n", ">=3.10") == (recipe.text(), recipe.requires_python)

    top = folder({"pyproject.toml": '[project]\nname="x"\ndynamic=["dependencies"]\n'})
    with pytest.raises(ConfigError, match="does not list its dependencies"):
        read_recipe(top / "pyproject.toml")
    top = folder(
        {"pyproject.toml": '[project]\nname="x"\ndependencies=["y"]\n[tool.uv.sources]\ny={git="https://a.b/y"}\n'}
    )
    with pytest.raises(ConfigError, match="make a lock with 'uv lock'"):
        read_recipe(top / "pyproject.toml")


def test_a_lock_goes_with_its_project(folder: Made) -> None:
    """uv reads both; a package that is a folder of the operator's machine cannot go along."""
    own = '[[package]]\nname="x"\nversion="1"\nsource={virtual="."}\n'
    top = folder({"uv.lock": f'version=1\nrequires-python=">=3.11"\n{own}'})
    with pytest.raises(ConfigError, match=r"there is no pyproject\.toml beside it"):
        read_recipe(top / LOCK)
    folder({"pyproject.toml": '[project]\nname="x"\n'})
    assert {LOCK, "pyproject.toml"} == set(read_recipe(top / LOCK).files)

    folder({"uv.lock": f'version=1\n{own}[[package]]\nname="lib"\nversion="1"\nsource={{editable="../lib"}}\n'})
    with pytest.raises(ConfigError, match=r"lib comes from \.\./lib, a path of this machine"):
        read_recipe(top / LOCK)


def test_an_environment_is_named_by_all_that_makes_it(folder: Made) -> None:
    """Any other content, Python, kind of machine or folder is another environment; the same is the same."""
    top = folder({"a.txt": "numpy\n"})
    one = read_recipe(top / "a.txt")
    usual = {"python": "3.11.7", "platform": "linux x86_64", "place": "/home/u"}
    names = {environment_id(one, **usual), environment_id(read_recipe(top / "a.txt"), **usual)}
    assert 1 == len(names)
    for part in usual:
        names.add(environment_id(one, **{**usual, part: "other"}))
    folder({"a.txt": "numpy\ntorch\n"})
    names.add(environment_id(read_recipe(top / "a.txt"), **usual))
    assert 5 == len(names)


# How it is built -------------------------------------------------------------------------------------------------------


def test_words_of_the_builders(tmp_path: Path) -> None:
    """pip from the project's own environment, uv where it is, the lock by uv alone; never an index or a password."""
    listed = Recipe(main="requirements.txt", files={"requirements.txt": ""})
    by_pip = commands(tmp_path, tmp_path, listed, uv=None, has_pip=True)
    assert by_pip[0][1:] == ["-m", "venv", "--without-pip", str(tmp_path)]
    assert by_pip[1][:5] == [sys.executable, "-m", "pip", "--python", f"{tmp_path}/bin/python"]
    assert by_pip[1][-2:] == ["-r", "requirements.txt"]
    by_uv = commands(tmp_path, tmp_path, listed, uv="/usr/bin/uv", has_pip=True)
    assert ["/usr/bin/uv", "pip", "install", "--python", f"{tmp_path}/bin/python"] == by_uv[1][:5]

    lock = Recipe(main=LOCK, files={LOCK: ""})
    assert {"sync", "--frozen", "--no-install-project"} < set(
        commands(tmp_path, tmp_path, lock, uv="uv", has_pip=True)[1]
    )
    with pytest.raises(ConfigError, match="the master does not have: install it there"):
        commands(tmp_path, tmp_path, lock, uv=None, has_pip=True)
    assert not any("index" in w for step in (*by_pip, *by_uv) for w in step)


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("Looking in indexes: https://me:s3cret@host/simple", "Looking in indexes: https://****@host/simple"),
        ("Downloading https://b.s3/x.whl?X-Amz-Signature=s3cret (1 MB)", "Downloading https://b.s3/x.whl?**** (1 MB)"),
        ("x @ git+https://s3cret@host/x.git", "x @ git+https://****@host/x.git"),
        ("a@b.com in https://host/a@b", "a@b.com in https://host/a@b"),
    ],
)
def test_no_password_in_a_log(line: str, kept: str) -> None:
    """A user and password in an address, and what a signed one carries, are left out."""
    assert kept == shown(line)


def test_built_once_and_kept_while_it_is_the_same(tmp_path: Path, shared: Path) -> None:
    """The first call builds, whatever a killed build had left there; the second finds it; a look alone builds nothing."""
    wheel(tmp_path, "tinyone")
    recipe = recipe_of(tmp_path, "./tinyone-1.0-py3-none-any.whl")
    where = building.place_of(recipe)

    foreseen = made_ready(recipe, shared, changes=False)
    assert (True, False) == (foreseen.is_built, own_place().exists())
    (where.folder / "bin").mkdir(parents=True)
    (where.folder / "bin/python").symlink_to(sys.executable)
    (where.folder / "half").touch()
    assert not is_whole(where)
    first, second = made_ready(recipe, shared), made_ready(recipe, shared)

    assert (True, False) == (first.is_built, second.is_built)
    assert first.interpreter == second.interpreter
    assert {"PATH": f"{where.folder}/bin", "VIRTUAL_ENV": str(where.folder)} == first.interpreter.variables
    assert not (where.folder / "half").exists()
    use = [f"{where.folder}/bin/python", "-c", "import tinyone; print(tinyone.VALUE)"]
    assert "here\n" == subprocess.run(use, capture_output=True, text=True).stdout
    assert 0 != subprocess.run([use[0], "-c", "import numpy"], capture_output=True).returncode  # nothing else is in it


@pytest.mark.seconds
def test_another_build_comes_to_the_same_versions(tmp_path: Path, shared: Path) -> None:
    """By what was kept on the shared folder, on a new master too: what was newest then, without the operator's file."""
    packages = tmp_path / "packages"
    packages.mkdir()
    wheel(packages, "tinyone", "1.0")
    made = made_ready(recipe_of(tmp_path, f"--find-links {packages}", "tinyone"), shared).interpreter
    wheel(packages, "tinyone", "2.0")
    env_registry.clear(str(own_place()), made.wanted.id)

    again = ready(made.wanted, None, HERE, str(shared), say=quiet)

    assert (True, made) == (again.is_built, again.interpreter)
    assert list(Path(made.folder).glob("lib/*/site-packages/tinyone-1.0.dist-info"))
    kept = shared / "environments" / f"{made.wanted.id}.json"
    assert 0o600 == kept.stat().st_mode & 0o777
    kept.unlink()
    with pytest.raises(ClusterError, match="start it anew"):
        ready(made.wanted, None, HERE, str(shared), say=quiet)


def test_a_failed_build_leaves_its_log_alone(tmp_path: Path, shared: Path) -> None:
    """pip's own line, on which machine the rest is, and no folder."""
    with pytest.raises(ClusterError) as failed:
        made_ready(recipe_of(tmp_path, "no-such-package==3"), shared)

    assert "Could not find a version that satisfies the requirement no-such-package==3" in str(failed.value)
    left = sorted(p.suffix for p in own_place().iterdir())
    assert [".lock", ".log"] == left
    log = next(own_place().glob("*.log"))
    assert str(log) in str(failed.value)
    assert 0o600 == log.stat().st_mode & 0o777


OPERATOR = """
import signal, sys
from pathlib import Path
from cluster.hosts import Host
from cluster.inventory import ROOT, Cluster
from cluster.packages.client import Packages
from cluster.packages.interpreter import EnvironmentKind, EnvironmentRequest
from cluster.packages.recipe import recipe_of
from cluster.ssh.fanout import Executor
signal.signal(signal.SIGINT, signal.default_int_handler)
here = (Host(rank=0, address="localhost", slots=1),)
cluster = Cluster(name="here", hosts=here, folder=Path(), shared=sys.argv[2], project=str(ROOT))
wanted = EnvironmentRequest(kind=EnvironmentKind.REQUIREMENTS, what=sys.argv[1])
with Executor(cluster) as reach:
    Packages(reach, cluster).ready(wanted, recipe_of(wanted), here)
"""


def test_an_interrupted_build_leaves_nothing(tmp_path: Path, shared: Path) -> None:
    """Ctrl-C while a package is compiled ends the compiler, and removes the folder; its log stays."""
    started = tmp_path / "started"
    source = never_ending_source(tmp_path, "slow", started)
    listed = tmp_path / "requirements.txt"
    listed.write_text(f"--no-index\n./{source.name}\n")
    operator = subprocess.Popen(
        [sys.executable, "-c", OPERATOR, str(listed), str(shared)], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    wait_for(lambda: started.exists() and bool(started.read_text().strip()), 120, "the build has begun")
    compiler = process_id(int(started.read_text()))

    operator.send_signal(signal.SIGINT)
    _, said = operator.communicate(timeout=PATIENCE_S)

    assert "its processes were ended on 1 of 1 host" in said
    wait_for(lambda: not compiler.is_alive, 10, "the compiler has ended")
    assert [".lock", ".log"] == sorted(p.suffix for p in own_place().iterdir())


@pytest.mark.seconds
def test_two_builders_wait_for_one_another(tmp_path: Path, shared: Path) -> None:
    """The second says that it waits, and finds what the first has built."""
    wheel(tmp_path, "tinyone")
    recipe = recipe_of(tmp_path, "./tinyone-1.0-py3-none-any.whl")
    where = building.place_of(recipe)
    said: list[str] = []
    is_waiting = threading.Event()

    def heard(text: str) -> None:
        said.append(text)
        is_waiting.set()

    results: list[Ready] = []

    def second() -> None:
        wanted = EnvironmentRequest(kind=EnvironmentKind.REQUIREMENTS, what="requirements.txt")
        results.append(ready(wanted, recipe, HERE, str(shared), say=heard))

    thread = threading.Thread(target=second)
    with held(where, quiet) as lock:
        thread.start()
        assert is_waiting.wait(60)
        build(where, recipe, "", lock, quiet)
    thread.join(PATIENCE_S)

    assert "waiting" in said[0]
    assert not results[0].is_built


def test_another_python_is_refused(tmp_path: Path, shared: Path) -> None:
    """Before anything is installed."""
    pytest.importorskip("packaging")
    recipe = Recipe(main="r.txt", files={"r.txt": ""}, requires_python=">=4")
    with pytest.raises(ConfigError, match="requires-python is >=4, and the hosts have"):
        made_ready(recipe, shared)


def test_a_venv_is_asked_for_on_every_host(tmp_path: Path, shared: Path) -> None:
    """Its folder, absolute, with a Python that runs."""
    there = tmp_path / "venv/bin"
    there.mkdir(parents=True)
    wanted = EnvironmentRequest(kind=EnvironmentKind.VENV, what=str(tmp_path / "venv"))
    assert "is not here" in ready(wanted, None, HERE, str(shared), say=quiet).lacking["localhost"]
    (there / "python").symlink_to(sys.executable)
    found = ready(wanted, None, HERE, str(shared), say=quiet)
    assert ({}, str(there)) == (found.lacking, found.interpreter.variables["PATH"])
    with pytest.raises(ConfigError, match="give its absolute path"):
        ready(EnvironmentRequest(kind=EnvironmentKind.VENV, what="venv"), None, HERE, str(shared), say=quiet)


# What conda 26.7 says of an environment, word for word but for its own place.
CONDA = """\
#!/bin/sh
[ "$1 $2" = "shell.posix activate" ] || exit 2
[ "$3" = torch ] || { printf 'EnvironmentNameNotFound: Could not find conda environment: %s\\n' "$3" >&2; exit 1; }
cat <<END
export _CE_M=''
export _CE_CONDA=''
PS1='(torch) '
export PATH='@/envs/torch/bin:@/condabin:$PATH'
export CONDA_PREFIX='@/envs/torch'
export CONDA_SHLVL='1'
export CONDA_DEFAULT_ENV='torch'
export CONDA_PROMPT_MODIFIER='(torch) '
. "@/envs/torch/etc/conda/activate.d/own.sh"
END
"""


def test_a_conda_environment_is_activated(tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What activating it sets reaches the ranks, of PATH what is new; an unknown name is conda's own sentence."""
    folder = tmp_path / "envs/torch"
    for made in ("bin", "etc/conda/activate.d"):
        (folder / made).mkdir(parents=True)
    (folder / "bin/python").symlink_to(sys.executable)
    (folder / "etc/conda/activate.d/own.sh").write_text("export OWN='a b' TOKENIZERS_PARALLELISM=false\n")
    stand_in = tmp_path / "conda"
    stand_in.write_text(CONDA.replace("@", str(tmp_path)))
    stand_in.chmod(0o755)
    monkeypatch.setenv("CONDA_EXE", str(stand_in))

    found = ready(
        EnvironmentRequest(kind=EnvironmentKind.CONDA, what="torch"), None, HERE, str(shared), say=quiet
    ).interpreter

    assert {
        "PATH": f"{folder}/bin:{tmp_path}/condabin", "CONDA_PREFIX": str(folder), "CONDA_SHLVL": "1",
        "CONDA_DEFAULT_ENV": "torch", "_CE_M": "", "_CE_CONDA": "", "OWN": "a b",
        "TOKENIZERS_PARALLELISM": "false",
    } == found.variables  # fmt: skip
    (folder / "etc/conda/activate.d/own.sh").write_text("export WANDB_API_KEY=x\n")
    with pytest.raises(ConfigError, match="WANDB_API_KEY is called like a secret, which would be visible"):
        conda.conda_variables("torch")
    with pytest.raises(ConfigError, match=r"EnvironmentNameNotFound: Could not find conda environment: other$"):
        conda.conda_variables("other")


# Containers ------------------------------------------------------------------------------------------------------------

RANK = RankFacts(
    engine="docker",
    image="img",
    folders=["/efs"],
    workdir="/efs/job/code",
    user=1000,
    group=100,
    has_gpus=True,
    has_fabric=True,
)


def test_words_of_a_rank_in_a_container() -> None:
    """The host's network, processes and memory; GPUs where it has them; variables by name, the host's own not."""
    environment = {
        "OMPI_COMM_WORLD_RANK": "3",
        "RANK": "3",
        "PATH": "/bin",
        "LD_LIBRARY_PATH": "x",
        "BASH_FUNC_x%%": "y",
        "MY_TOKEN": "s3cret",
    }
    docker = words(RANK, ["python", "x.py"], environment)
    assert docker[:6] == ["docker", "run", "--rm", "--network=host", "--ipc=host", "--pid=host"]
    assert {"--user=1000:100", "--gpus=all", "--device=/dev/infiniband", "/efs:/efs"} < set(docker)
    assert ["--workdir", "/efs/job/code", "--entrypoint", "python", "img", "x.py"] == docker[-6:]
    passed = [docker[n + 1] for n, word in enumerate(docker) if word == "--env"]
    assert ["MY_TOKEN", "OMPI_COMM_WORLD_RANK", "RANK"] == passed
    assert not any("s3cret" in word for word in docker)

    podman = words(RANK._replace(engine="podman"), ["python"], environment)
    assert {"--userns=keep-id", "--device=nvidia.com/gpu=all", "--ulimit=host"} < set(podman)
    assert "--cpuset-cpus=4,5" in words(RANK._replace(cores=[4, 5]), ["python"], {})
    plain = words(RANK._replace(engine="podman", has_gpus=False, has_fabric=False, user=0), ["python"], {})
    assert not [w for w in plain if "device" in w or "userns" in w]
    assert [
        "apptainer", "--silent", "exec", "--nv", "--bind", "/efs", "--pwd", "/efs/job/code", "img", "python", "x.py",
    ] == words(RANK._replace(engine="apptainer"), ["python", "x.py"], environment)  # fmt: skip


STAND_IN = """\
#!/bin/sh
# An engine that records its words, and runs what stands after the image on this host.
echo "$*" >>"$STAND_IN_LOG"
case $1 in
    info|--version) exit 0 ;;
    image) [ -e "$STAND_IN_LOG.has" ] ; exit ;;
    pull) [ "$3" = good/image ] || { echo "Error: no such image $3" >&2; exit 125; }; touch "$STAND_IN_LOG.has"; exit ;;
esac
case "$*" in *"--env PYTHONPATH "*) ;; *) export PYTHONPATH="$PYTHONPATH_OF_IMAGE" ;; esac
while [ "$1" != --workdir ]; do shift; done
program=$4; shift 5
exec "$program" "$@"
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its log; docker and podman are stand-ins."""
    (tmp_path / "bin").mkdir()
    for name in ("docker", "podman"):
        (tmp_path / "bin" / name).write_text(STAND_IN)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("STAND_IN_LOG", str(tmp_path / "engine.log"))
    return tmp_path / "engine.log"


def test_an_image_is_there_before_a_rank_starts(shared: Path, engine: Path) -> None:
    """It is fetched once on each host; one that cannot be had is the engine's own line; a look fetches nothing."""
    wanted = EnvironmentRequest(kind=EnvironmentKind.CONTAINER, what="good/image", binds=("/data",))
    foreseen = ready(wanted, None, HERE, str(shared), changes=False, say=quiet)
    assert (("localhost",), {}) == (foreseen.brought, foreseen.lacking)
    assert "pull" not in engine.read_text()

    for _ in range(2):
        found = ready(wanted, None, HERE, str(shared), say=quiet)
    assert {} == found.lacking
    assert 1 == engine.read_text().count("pull")
    said = subprocess.run([*found.interpreter.prefix, "sh", "-c", 'echo "in $0"', "it"], capture_output=True, text=True)
    assert "in it\n" == said.stdout
    assert f"--volume {shared}:{shared} --volume /data:/data" not in engine.read_text()  # /data is not on this host
    assert f"--volume {shared}:{shared}" in engine.read_text()

    (engine.parent / "engine.log.has").unlink()
    bad = ready(
        EnvironmentRequest(kind=EnvironmentKind.CONTAINER, what="bad/image"), None, HERE, str(shared), say=quiet
    )
    assert {"localhost": "Error: no such image bad/image"} == bad.lacking


@pytest.mark.parametrize("of_image", ["/of/image:/more", ""])
def test_an_image_keeps_its_own_modules(
    shared: Path, engine: Path, folder: Made, monkeypatch: pytest.MonkeyPatch, of_image: str
) -> None:
    """Ranks have its PYTHONPATH behind the job's, an image without one the job's alone; the look before has it too."""
    top = folder({"image/of_image.py": "", "train.py": "import of_image\n"})
    found = ready(
        EnvironmentRequest(kind=EnvironmentKind.CONTAINER, what="good/image"), None, HERE, str(shared), say=quiet
    ).interpreter
    monkeypatch.setenv("PYTHONPATH_OF_IMAGE", of_image)
    says = [*found.prefix, "sh", "-c", 'echo "$0 $1 $PYTHONPATH${DLAMI_PYTHONPATH-}"', "a b", "c"]
    environment = {**os.environ, "PYTHONPATH": "/own:/efs/jobs/x/lib"}
    said = subprocess.run(says, env=environment, capture_output=True, text=True).stdout
    assert ":".join(["a b c /own:/efs/jobs/x/lib", *filter(None, [of_image])]) + "\n" == said

    monkeypatch.setenv("PYTHONPATH_OF_IMAGE", str(top / "image"))
    for variables in ({}, {"PYTHONPATH": "/own"}):
        assert "" == trouble([sys.executable, "train.py"], top, found, variables)


# What is missing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "program"),
    [
        ("python train.py --lr 1", {"script": "train.py"}),
        ("/usr/bin/python3.11 -u -X dev -W error a/b.py", {"script": "a/b.py"}),
        ("python3 -m pkg.train -x", {"module": "pkg.train"}),
        ("python -um pkg", {"module": "pkg"}),
        ("python -c pass", {"code": "pass"}),
        ("torchrun train.py --nnodes 2", {"script": "train.py"}),
        ("/e/bin/torchrun --nnodes 2 --nproc-per-node=8 --standalone -r3 -t 1 a/train.py -x", {"script": "a/train.py"}),
        ("torchrun --some-new=thing train.py -m other", None),
        ("torchrun --some-new thing.py train.py", None),
        ("torchrun --nnodes 2 -m pkg.train -x", {"module": "pkg.train"}),
        ("torchrun --no-python ./a.out", None),
        ("torchrun --nnodes 2", None),
        ("accelerate launch --config_file c.yaml --num-processes 2 --multi_gpu t.py", {"script": "t.py"}),
        ("accelerate launch --use_fsdp --fsdp_offload_params true --quiet -m pkg", {"module": "pkg"}),
        ("accelerate config t.py", None),
        ("deepspeed --num_gpus 8 -H hosts t.py --deepspeed ds.json", {"script": "t.py"}),
        ("python -u -m torch.distributed.run --nnodes=2 t.py", {"script": "t.py", "launcher": "torch.distributed.run"}),
        ("python -m torch.distributed.run --odd t.py", {"module": "torch.distributed.run"}),
        ("python -m accelerate.commands.launch -m p.t", {"module": "p.t", "launcher": "accelerate.commands.launch"}),
        ("env -u X A=1 python t.py", {"script": "t.py"}),
        ("env A=1 torchrun t.py", {"script": "t.py"}),
        ("env -C /x python t.py", None),
    ],
)
def test_what_a_python_runs(line: str, program: "dict[str, str] | None") -> None:
    """The script, the module or the text, behind the interpreter's options and a launcher's; none behind unknown ones."""
    found = what_runs(tuple(line.split()))
    assert program == (found[1] if found else None)


@pytest.mark.parametrize(
    "line", ["bash x.py", "uv run x.py", "env", "", "python", "python -", "python -u -m", "./a.out"]
)
def test_what_is_no_python_program_is_not_read(line: str) -> None:
    """Nothing can be said of it before it starts."""
    assert what_runs(line.split()) is None


def missing(top: Path, *asked: str, options: tuple[str, ...] = ()) -> dict[str, str]:
    """What the interpreter says, asked as ranks' own is: name -> file below the program's folder."""
    kind, value = asked
    given = json.dumps({kind: value, "own": str(top)})
    check = (ROOT / "cluster/packages/onhost/imports.py").read_text()
    done = subprocess.run([sys.executable, *options, "-c", check, given], cwd=top, capture_output=True, text=True)
    return dict(json.loads(done.stdout)["missing"])


def test_a_missing_module_is_found_before_it_runs(folder: Made) -> None:
    """Of the script, and of its own modules; nothing is run to know it."""
    top = folder(
        {
            "train.py": "import os, notthere.deep\nfrom own import model\nraise SystemExit('it was run')\n",
            "own/__init__.py": "import thirdnot\nraise SystemExit('it was run')\n",
            "own/data.py": "import json\nimport fourthnot\nfrom . import y\n",
        }
    )
    assert {"notthere": "train.py", "thirdnot": "own/__init__.py"} == missing(top, "script", "train.py")
    assert {"notthere", "thirdnot"} == set(missing(top, "module", "train"))
    assert {"fourthnot": "own/data.py"} == missing(top, "module", "own.data")  # and its package is not run
    assert {"absent.module": ""} == missing(top, "module", "absent.module")
    assert {"notthere"} == set(missing(top, "code", "import notthere"))


@pytest.mark.parametrize(
    "text",
    [
        "try:\n    import notthere\nexcept ImportError:\n    notthere = None\n",
        "if False:\n    import notthere\n",
        "def f():\n    import notthere\n",
        "import sys\nsys.path.insert(0, 'lib')\nimport notthere\n",
        "from sys import path\npath.append('lib')\nimport notthere\n",
        "import sys as s\ns.path.append('lib')\nimport notthere\n",
        "import site\nsite.addsitedir('lib')\nimport notthere\n",
        "import sys\nsys.modules['notthere'] = sys\nimport notthere\n",
        "from dlami import job\n",
        "from . import x\n",
        "import (\n",
    ],
)
def test_what_may_go_well_is_no_alarm(folder: Made, text: str) -> None:
    """An import that need not happen, or is looked for where the program itself says, is not judged."""
    assert {} == missing(folder({"train.py": text}), "script", "train.py")


# What setuptools writes into an environment for `pip install -e` of a package beside its setup.py, but for the names.
EDITABLE = """\
import sys
from importlib.util import spec_from_file_location
class _EditableFinder:
    @classmethod
    def find_spec(cls, fullname, _path=None, _target=None):
        if fullname == "edited":
            return spec_from_file_location(fullname, "PLACE/edited/__init__.py")
sys.meta_path.append(_EditableFinder)
"""


def test_an_editable_install_is_there(folder: Made, tmp_path: Path) -> None:
    """`python -m` of one runs, so nothing is said against it; a module that no finder knows is still told."""
    top = folder({"edited/__init__.py": "", "edited/train.py": "print('it ran')\n", "elsewhere/x": ""})
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv/bin/python"
    packages = next((tmp_path / "venv/lib").glob("python*/site-packages"))
    (packages / "__editable___edited_finder.py").write_text(EDITABLE.replace("PLACE", str(top)))
    (packages / "__editable__.edited-1.pth").write_text("import __editable___edited_finder\n")
    line = [str(python), "-m", "edited.train"]

    assert "it ran\n" == subprocess.run(line, cwd=top / "elsewhere", capture_output=True, text=True).stdout
    assert "" == trouble(line, top / "elsewhere", None, {})
    assert "imports gone.train" in trouble([str(python), "-m", "gone.train"], top / "elsewhere", None, {})


def test_a_script_finds_its_neighbours(folder: Made) -> None:
    """As when it runs: beside the script, not where one stands, and not in an isolated Python."""
    top = folder({"deep/train.py": "import beside\n", "deep/beside.py": "", "train.py": "import beside\n"})
    assert {} == missing(top, "script", "deep/train.py")
    assert {"beside": "train.py"} == missing(top, "script", "train.py")
    assert {"beside"} == set(missing(top, "script", "deep/train.py", options=("-I",)))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["python", "train.py"], ""),
        (["python", "-m", "beside"], ""),
        (["python", "-c", "import beside"], ""),
        (["python", "gone.py"], "gone.py: there is no such file in the program's folder on the master"),
        (["python", "-m", "gone"], "imports gone"),
        (["no-such-command", "train.py"], "no-such-command: there is no such command on the master"),
    ],
)
def test_what_cannot_begin_is_said_before_it_does(folder: Made, words: list[str], said: str) -> None:
    """A file, a module or a command that the master lacks; of what is there nothing is said."""
    top = folder({"train.py": "import beside\n", "beside.py": ""})
    found = trouble(words, top, None, {})
    assert said in found and bool(said) == bool(found), found
    assert "is not on the master" in trouble(words, top / "nowhere", None, {})


def test_a_launcher_s_program_is_read_by_the_launcher_s_python(
    folder: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By that of its first line, whatever `python` is; the variables of `env` hold, and a launcher that lacks is told."""
    top = folder(
        {"train.py": "import beside, notthere\n", "good.py": "import more\n", "own/more.py": "", "beside.py": ""}
    )
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name, text in (("torchrun", f"#!{sys.executable}\n"), ("python", "#!/bin/sh\necho '{\"missing\": {}}'\n")):
        (bin_folder / name).write_text(text)
        (bin_folder / name).chmod(0o755)
    with_own_python = Interpreter(
        wanted=EnvironmentRequest(kind=EnvironmentKind.VENV, what="/v"), variables={"PATH": str(bin_folder)}
    )

    def said(*words: str, interpreter: "Interpreter | None" = with_own_python) -> str:
        return trouble(words, top, interpreter, {})

    assert "imports notthere (train.py), which is not in its environment" in said(
        "torchrun", "--nnodes", "2", "train.py"
    )
    assert "imports more (good.py)" in said("torchrun", "good.py")
    assert "" == said("env", "PYTHONPATH=own", "torchrun", "good.py")
    assert "gone.py: there is no such file" in said("torchrun", "gone.py")
    assert "imports notthere" in said("env", "A=1", "python", "train.py", interpreter=None)
    (bin_folder / "torchrun").write_text("#!/bin/sh\n")
    assert "" == said("torchrun", "train.py")


def test_a_launcher_that_is_missing_is_told_before_its_program(folder: Made) -> None:
    """With `-m` it is a module as others are; where it is there its program's modules are looked for."""
    top = folder({"train.py": "import notthere\n"})
    given = {"script": "train.py", "own": str(top)}
    check = (ROOT / "cluster/packages/onhost/imports.py").read_text()
    for launcher, told in (("nolauncher.run", {"nolauncher.run": ""}), ("json.tool", {"notthere": "train.py"})):
        words = [sys.executable, "-c", check, json.dumps({**given, "launcher": launcher})]
        done = subprocess.run(words, cwd=top, capture_output=True, text=True, check=True)
        assert told == json.loads(done.stdout)["missing"]


# On every host ---------------------------------------------------------------------------------------------------------


def test_a_host_goes_on_with_what_is_of_the_same_build(tmp_path: Path) -> None:
    """What an interrupted copy left is kept for the next; of another build nothing is; whole is what was declared so."""
    place, part = str(tmp_path / "place"), tmp_path / "place/ab/part"
    python = subprocess.run([sys.executable, "-c", "import sys; print(sys.version)"], capture_output=True, text=True)
    version = python.stdout.strip()

    assert {"there": False} == env_registry.is_complete(place, "ab", "one", version, False)
    assert not Path(place).exists()
    for name, is_kept in (("one", False), ("one", True), ("two", False)):
        assert {"there": False} == env_registry.is_complete(place, "ab", name, version, True)
        assert is_kept == part.exists()
        part.touch()
    assert "is not here" in env_registry.declare(place, "ab", {"build": "two", "python": version})["why"]
    (tmp_path / "place/ab/bin").mkdir()
    (tmp_path / "place/ab/bin/python").symlink_to(sys.executable)
    assert {"there": False} == env_registry.is_complete(
        place, "ab", "two", version, False
    )  # it runs, and nobody has declared it
    assert env_registry.declare(place, "ab", {"build": "two", "python": version})["there"]
    assert {"there": True} == env_registry.is_complete(place, "ab", "two", version, False)
    assert {"there": False} == env_registry.is_complete(place, "ab", "three", version, False)


def test_a_job_that_goes_on_has_the_same_packages() -> None:
    """By the id of what was built, not by a file that may have changed since; with the host's own they are none."""
    wanted = EnvironmentRequest(kind=EnvironmentKind.REQUIREMENTS, what="requirements.txt", id="ab")
    for packages in (wanted, None):
        job = from_json(Job, json.loads(json.dumps(dataclasses.asdict(a_program("gpu", packages=packages)))))
        view = JobView(job=job, status=JobStatus(state=JobState.FAILED), folder="/f", owner="me", age_s=0.0)
        again = next_attempt(view, CLUSTER, None, None)
        assert packages == again.packages


# What there is ---------------------------------------------------------------------------------------------------------


def an_environment(name: str, **changes: Any) -> Environment:
    """One that nobody has used for a day."""
    usual = {
        "what": "r.txt",
        "made": "",
        "hosts": ("h",),
        "partly": (),
        "bytes": 10**6,
        "idle_s": 86400.0,
        "going_on": (),
        "ended": (),
    }
    return Environment(id=name, **{**usual, **changes})


def test_only_what_nobody_uses_is_removed() -> None:
    """Not what a job runs with, nor what was used a moment ago; an id by its beginning, if it means one."""
    new, old = an_environment("ab1", idle_s=5.0), an_environment("ab2")
    used, older = an_environment("cd1", going_on=("job-1",)), an_environment("cd2", idle_s=40 * 86400.0)
    have = Stock(place="/p", environments=(new, old, used, older), silent={})

    assert (old, older) == chosen(have, "unused", 0)
    assert (older,) == chosen(have, "unused", 30)
    assert (new,) == chosen(have, "ab1", 0)
    with pytest.raises(ConfigError, match="in use by job-1"):
        chosen(have, "cd1", 0)
    for which in ("ab", "", "xy"):
        with pytest.raises(ConfigError, match="means"):
            chosen(have, which, 0)
