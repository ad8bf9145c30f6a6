"""The command `dlami`, installed from a wheel: the same tasks from any folder, with no checkout at hand."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from cluster.inventory import ROOT
from tests.conftest import PATIENCE_S
from tests.wheel import install_wheel


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder of the commands of an environment that has the wheel and, of its dependencies, those of this one."""
    return install_wheel(tmp_path_factory.mktemp("installed"))


@pytest.fixture
def dlami(installed: Any, tmp_path: Path) -> Any:
    """The command, as a person calls it from some folder."""
    own = {k: v for k, v in os.environ.items() if k not in ("CLUSTER", "PYTHONPATH")}

    def run(*words: Any, cwd: Any = tmp_path, **env: Any) -> Any:
        return subprocess.run(
            [str(installed / "dlami"), *map(str, words)],
            cwd=cwd,
            env={**own, "PATH": f"{installed}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(tmp_path / "cache"), **env},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Any:
    """A cluster's folder, with one below it."""
    (tmp_path / "mine/below/it").mkdir(parents=True)
    (tmp_path / "mine/hosts").write_text("10.9.8.7 slots=4\n10.9.8.8 slots=4\n")
    (tmp_path / "mine/cluster.toml").write_text('name = "mine"\n')
    return tmp_path / "mine"


def test_it_has_every_task_of_the_checkout(dlami: Any) -> None:
    """Under the same names."""
    own = subprocess.run(
        [sys.executable, "-m", "invoke", "--complete"], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S
    )

    assert sorted(own.stdout.split()) == sorted(dlami("--complete").stdout.split())
    assert 50 < len(own.stdout.split())


def test_nothing_of_it_is_the_checkout_s(installed: Any, dlami: Any) -> None:
    """What it imports and reads was installed."""
    code = (
        "from pathlib import Path; import cfn, cluster, dlami, trainer, cluster.files as f; from cfn.template import firstboot;"
        "from cluster.clusterfile.instance_types import known_types; from cluster.ssh.program import program;"
        "print(*[m.__path__[0] for m in (cfn, cluster, dlami, trainer)], f.shipped('requirements.lock'),"
        " firstboot.SCRIPT, f.shipped('scripts/install.sh'), f.shipped('scripts/lab-host.sh'), sep='\\n');"
        "assert firstboot.body() and f.shipped('requirements.lock').read_text();"
        "assert known_types();"
        "assert program('cluster.kill.onhost.leftovers').stdin"
    )
    done = subprocess.run(
        [str(installed / "python"), "-I", "-c", code], cwd="/", capture_output=True, text=True, timeout=PATIENCE_S
    )

    assert 0 == done.returncode, done.stderr
    for line in done.stdout.splitlines():
        assert line.startswith(str(installed.parent / "lib")), line
        assert Path(line).exists()


def test_the_cluster_file_is_found_upwards_from_where_one_stands(dlami: Any, folder: Any) -> None:
    """As git finds its own; CLUSTER names another."""
    below = dlami("hosts.list", cwd=folder / "below/it")
    other = folder.parent / "other"
    other.mkdir()
    (other / "hosts").write_text("10.1.1.1 slots=1\n")
    named = dlami("hosts.list", cwd=folder / "below", CLUSTER=str(other))

    assert "10.9.8.7" in below.stdout, below.stderr
    assert "2 hosts, 8 slots" in below.stdout
    assert "10.1.1.1" in named.stdout
    assert "1 host, 1 slot\n" in named.stdout


def test_outside_of_every_cluster_it_says_what_to_do(dlami: Any) -> None:
    """Not that a package's folder has no hostfile."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:  # no other test's cluster file lies above it
        done = dlami("hosts.list", cwd=Path(folder))

    assert 2 == done.returncode
    assert f"there is no cluster in {folder} or above it" in done.stderr
    assert "CLUSTER=" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", ["hosts.list", "run -- true", "train.run -- true", "stack.init"])
def test_a_folder_that_was_deleted_is_said_in_a_line(installed: Any, tmp_path: Path, words: str) -> None:
    """As a job's folder is that somebody else removed under a shell that stands in it."""
    own = {k: v for k, v in os.environ.items() if k != "CLUSTER"}
    line = f'mkdir gone && cd gone && rmdir "$PWD" && exec {installed}/dlami {words}'
    done = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, env=own, capture_output=True, text=True, timeout=PATIENCE_S
    )

    assert (2, 1) == (done.returncode, len(done.stderr.splitlines())), done.stderr
    assert "is gone: cd to one that exists" in done.stderr


@pytest.mark.parametrize("task", ["docs", "bench"])
def test_what_only_a_checkout_has_is_said(dlami: Any, task: Any) -> None:
    """The pages and the benchmarks are not installed."""
    done = dlami(task)

    assert 2 == done.returncode
    assert "are not part of an installed dlami-cluster: run this in a checkout of it" in done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["helth"], "there is no task 'helth' (did you mean health?); all of them: dlami --list"),
        (["jobs.lst"], "(did you mean jobs.list?)"),
        (["run", "--tiemout", "5", "--", "df"], "dlami run has no option --tiemout (did you mean --timeout?)"),
        (["run", "hostname", "-f"], "words for what it runs go after --: dlami run -- hostname -f"),
        (
            ["train.resnet50", "--data-dir", "/d"],
            "for what it runs it goes after --: dlami train.resnet50 -- --data-dir /d",
        ),
        (["run", "--fanout", "two", "--", "df"], "--fanout takes a number, not 'two'"),
        (["run", "--timeout=soon", "--", "df"], "--timeout takes a number, not 'soon'"),
        (["hosts.list", "jobs.lst"], "takes no 'jobs.lst', and there is no such task (did you mean jobs.list?)"),
    ],
)
def test_a_mistyped_word_gets_the_nearest_one(dlami: Any, words: Any, expected: Any) -> None:
    """One line, and no traceback."""
    done = dlami(*words)

    assert 2 == done.returncode
    assert expected in done.stderr
    assert 1 == len(done.stderr.splitlines())


@pytest.mark.parametrize(("target", "code"), [("head -c 1 >/dev/null", 141), ("cat >/dev/null", 0)])
@pytest.mark.parametrize("words", ["--list", "hosts.list", "hosts.list --json", "--help run"])
def test_a_reader_that_has_enough_is_no_error_of_ours(
    installed: Any, folder: Any, words: Any, target: Any, code: Any
) -> None:
    """`dlami … | head`: no traceback; the exit code is a shell's own."""
    done = subprocess.run(
        ["bash", "-c", f"{installed}/dlami {words} | (sleep 0.01; {target}); exit ${{PIPESTATUS[0]}}"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )

    assert "" == done.stderr
    assert done.returncode in (0, code), "what was written before the reader left is written"


@pytest.mark.parametrize("words", [["--list"], ["hosts.list"], ["run", "--", "true"]])
def test_a_full_disk_is_said_in_a_line(installed: Any, folder: Any, words: Any) -> None:
    """`dlami … >/dev/full`."""
    (folder / "hosts").write_text("localhost slots=1\n")
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(
            [str(installed / "dlami"), *words],
            cwd=folder,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_S,
        )

    assert 1 == done.returncode
    assert "its output, or a file, could not be written: No space left on device\n" == done.stderr


@pytest.mark.parametrize("words", [["--list"], ["hosts.list"], ["run", "--", "true"]])
def test_a_terminal_that_is_gone_is_said_in_a_line(installed: Any, folder: Any, words: Any) -> None:
    """As one is whose window was closed under a command that does not care for SIGHUP."""
    (folder / "hosts").write_text("localhost slots=1\n")
    outer, terminal = os.openpty()
    os.close(outer)
    try:
        done = subprocess.run(
            [str(installed / "dlami"), *words],
            cwd=folder,
            stdout=terminal,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_S,
        )
    finally:
        os.close(terminal)

    assert 1 == done.returncode
    assert "its output, or a file, could not be written: Input/output error\n" == done.stderr


def test_bash_completes_tasks_and_options(installed: Any, dlami: Any) -> Any:
    """By the script that is documented."""
    script = dlami("--print-completion-script", "bash").stdout
    ask = "COMP_WORDS=({words}); COMP_CWORD=1; _complete_dlami dlami {last}; printf '%s\\n' \"${{COMPREPLY[@]}}\""

    def completed(words: Any, last: Any) -> Any:
        done = subprocess.run(
            ["bash", "-c", script + "\n" + ask.format(words=words, last=last)],
            env={**os.environ, "PATH": f"{installed}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        return done.stdout.split()

    assert {"hosts.forgive", "hosts.join", "hosts.list", "hosts.write"} == set(completed("dlami hosts.", "hosts."))
    assert ["--timeout"] == completed("dlami run --tim", "--tim")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_completion(dlami: Any, shell: Any) -> None:
    """It asks the command itself, so it knows every task; where the shell is here, it reads it without complaint."""
    done = dlami("--print-completion-script", shell)

    assert 0 == done.returncode
    assert "--complete --" in done.stdout
    assert "_complete_dlami" in done.stdout
    if shutil.which(shell):
        checked = subprocess.run([shell, "-n"], input=done.stdout, capture_output=True, text=True, timeout=PATIENCE_S)
        assert (0, "") == (checked.returncode, checked.stderr)
