"""Programs that are sent to hosts: what arrives, on which Python, and which answers count."""

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.errors import ClusterError
from cluster.hosts import Host
from cluster.inventory import ROOT, Cluster
from cluster.ssh import program as programs
from cluster.ssh.fanout import Executor
from cluster.ssh.onhost.frame import MARK, Frames, framed
from cluster.ssh.program import NoAnswer, answer_of, ask, program
from cluster.ssh.result import Result
from tests.conftest import PATIENCE_S
from tests.walking import walked

HOST = Host(rank=0, address="localhost", slots=1)
SENT = sorted(p for p in (ROOT / "cluster").glob("*/onhost/*.py") if p.name != "__init__.py")
INSTALLED = ("node_role.py",)  # root's copy is run on the host, nobody sends it
WITH_MAIN = [p for p in SENT if "\ndef main(" in p.read_text() and p.name not in INSTALLED]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def oldest_python() -> str:
    """The oldest Python on this machine that a host may have."""
    found = [f"{Path.home()}/.pyenv/versions/{v.name}/bin/python" for v in Path.home().glob(".pyenv/versions/3.9.*")]
    found += [p for minor in (9, 10, 11, 12) if (p := shutil.which(f"python3.{minor}"))]
    return next((p for p in found if Path(p).exists()), sys.executable)


def result(stdout: bytes, code: int = 0) -> Result:
    return Result(host=HOST, exit_code=code, stdout=stdout, seconds=0.1)


def run_here(sent: programs.HostProgram, *own: object) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(["sh", "-c", sent.command(*own)], input=sent.stdin, capture_output=True, timeout=PATIENCE_S)


@given(st.lists(JSON, max_size=3), st.lists(st.binary(max_size=20).filter(lambda b: b"\x1e" not in b), min_size=4))
def test_a_frame_is_found_among_anything_that_is_printed(records: Any, noise: Any) -> None:
    """Before, between and after, however the bytes are cut on their way."""
    stream = noise[0] + b"".join(framed(r) + n for r, n in zip(records, noise[1:], strict=False))
    whole, piecewise = Frames(), Frames()

    assert records == whole.feed(stream)
    assert records == [r for n in range(len(stream)) for r in piecewise.feed(stream[n : n + 1])]


@given(JSON, st.data())
def test_a_frame_that_was_cut_or_changed_is_no_answer(record: Any, data: st.DataObject) -> None:
    """Cut anywhere, or any byte another one: nothing is read, or what was said."""
    frame = framed(record)
    at = data.draw(st.integers(0, len(frame) - 2))
    with pytest.raises(NoAnswer):
        answer_of(result(frame[:at]))
    changed = bytearray(frame)
    changed[at] ^= data.draw(st.integers(1, 255))

    assert Frames().feed(bytes(changed)) in ([], [record])
    assert ["after"] == Frames().feed(frame[:at] + framed("after")), "a frame that was cut hides no other"


@pytest.mark.parametrize("record", ["x" * 300, {"a": 1}, None])
def test_a_frame_that_was_cut_anywhere_hides_no_other(record: Any) -> None:
    """Also where the next one's mark stands in place of the checksum."""
    frame = framed(record)
    cuts = range(len(frame) - 1)  # without its last byte, a newline, it is whole
    assert [["after"]] * len(cuts) == [Frames().feed(frame[:at] + framed("after")) for at in cuts]


def test_an_answer_that_did_not_come_is_told_from_one_that_was_cut() -> None:
    """Each with its own words; a program that failed has its own."""
    for said, expected in ((b"hello\n", "without an answer"), (framed([1, 2])[:-3], "did not arrive whole")):
        with pytest.raises(NoAnswer, match=expected):
            answer_of(result(said))
    with pytest.raises(NoAnswer, match="exited 3"):
        answer_of(result(framed(1), code=3))
    with pytest.raises(NoAnswer, match="whole"):
        answer_of(result(framed(1) + MARK + b"12 "))


@pytest.mark.parametrize("magic", [programs.MAGIC_NUMBER, b"another"], ids=["compiled", "source"])
def test_a_program_runs_compiled_or_from_its_source(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, magic: Any
) -> None:
    """A Python with the same bytecode takes the modules as they are compiled here, any other their source."""
    monkeypatch.setattr(programs, "MAGIC_NUMBER", magic)
    (tmp_path / "it's a file").write_text("12")
    done = run_here(program("cluster.stage.onhost.look", str(tmp_path)))

    assert (1, 2) == tuple(answer_of(result(done.stdout))[what] for what in ("files", "bytes")), done.stderr


def test_a_python_that_is_missing_or_too_old_is_named(tmp_path: Path) -> None:
    """Python: the one on PATH instead, or a sentence; a path with a blank is a path."""
    old = tmp_path / "an old" / "python"
    old.parent.mkdir()
    old.write_text(
        '#!/bin/sh\nexec /usr/bin/env python3 -c "import sys; sys.version_info = (3, 8); $(printf %s "$4")"\n'
    )
    old.chmod(0o755)
    missing = run_here(program("cluster.stage.onhost.look", "/nowhere", python="/no such/python"))
    done = run_here(program("cluster.stage.onhost.look", "/nowhere", python=str(old)))

    assert not answer_of(result(missing.stdout))["there"]
    assert (1, b"Python 3.9 or newer is needed here") == (done.returncode, done.stderr[:34])


def test_input_that_something_else_read_is_named() -> None:
    """A shell's start-up file that reads takes the program's place."""
    sent = program("cluster.stage.onhost.look", "/nowhere")
    done = subprocess.run(["sh", "-c", sent.command()], input=sent.stdin[100:], capture_output=True)

    assert b"start-up file of the shell" in done.stderr
    assert b"Traceback" not in done.stderr


def test_what_is_sent_runs_on_python_3_9() -> None:
    """By a checker's word."""
    words = [str(Path(sys.executable).with_name("vermin")), "-t=3.9-", "--no-tips", "--violations", "--processes=1"]
    said = subprocess.run([*words, *map(str, SENT)], capture_output=True, text=True)
    assert 0 == said.returncode, said.stdout


@walked("path", SENT)
def test_what_is_sent_imports_only_what_hosts_have(path: Any) -> None:
    """The standard library and other modules that are sent; boto3 where it stages."""
    for node in ast.walk(ast.parse(path.read_text(), feature_version=(3, 9))):
        names = [n.name for n in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            own = name.startswith("cluster.") and "onhost" in name.split(".")
            aws = (path.parts[-3] == "stage" or path.name in INSTALLED) and name.startswith(("boto3", "botocore"))
            assert own or aws or name.partition(".")[0] in sys.stdlib_module_names, name


@pytest.mark.seconds
@walked("path", WITH_MAIN)
def test_every_program_starts_on_the_oldest_python(path: Any) -> None:
    """Sent as it is sent: all its modules are imported there, and it is called without what it needs."""
    done = run_here(program(module_of(path), python=oldest_python(), is_isolated=False))

    assert b"TypeError: main() missing" in done.stderr, done.stderr


def test_the_programs_work_on_the_oldest_python() -> None:
    """Those that only look, whole."""
    python = oldest_python()
    asked = {"going": [], "over": []}
    for sent in (
        program("cluster.launch.onhost.survey", "/tmp", python=python, is_isolated=False),
        program("cluster.kill.onhost.leftovers", asked, "localhost", python=python),
        program("cluster.stage.onhost.look", "/nowhere", python=python),
        program("cluster.health.onhost.probe", [], python=python),
    ):
        done = run_here(sent)
        assert isinstance(answer_of(result(done.stdout, done.returncode)), dict), done.stderr


def test_a_host_whose_program_fails_is_named_with_the_program(reach: Executor, cluster: Cluster) -> None:
    """Not with the shell text that starts it."""
    with pytest.raises(ClusterError) as error:
        ask(reach, cluster.hosts[:2], program("cluster.stage.onhost.look"), lambda h: ["/etc/ssh"] * h.rank)[0].check()

    assert "1 of 2 hosts failed: look  (1 ok)" in str(error.value)
    assert json.dumps(str(error.value)).isascii()
