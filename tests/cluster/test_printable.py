"""Control characters in foreign text: they never steer the operator's terminal, and text stays as it is."""

import json
import os
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from cluster.inventory import ROOT
from cluster.printable import OutputFilter, printable, sentence
from cluster.terminal import print_json
from cluster.top.snapshot import JobSeen, Visibility
from cluster.top.table import View, lines
from lab.record import Lab
from tests.cfn.terminal import Terminal
from tests.cluster.frames import frame, seen

CLIPBOARD, TITLE, CLEAR = "\x1b]52;c;cm0gLXJmIC8=\x07", "\x1b]0;root\x1b\\", "\x1b[2J\x1b[H"
HOSTILE = {
    CLIPBOARD: "^[]52;c;cm0gLXJmIC8=^G",
    TITLE: "^[]0;root^[\\",
    CLEAR: "^[[2J^[[H",
    "\x9b2J": "<U+009B>2J",
    "fine\rroot@master": "fine^Mroot@master",
    "abc\u202etxt.exe": "abc<U+202E>txt.exe",
    "\udcff\ud800": "<FF><U+D800>",
    "a\x00b\x7f\x08": "a^@b^?^H",
    "\U000e0041": "<U+E0041>",
    "\x1b": "^[",
    "\x1b[8mhidden": "hidden",
    "\x1b[38;5;0mhidden\x1b[0m": "hidden",
}


@pytest.mark.parametrize(("text", "shown"), HOSTILE.items())
def test_what_steers_a_terminal_is_shown_instead(text: str, shown: str) -> None:
    """As less shows it; colours of others are left out."""
    assert shown == printable(text)
    assert all(c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cs") for c in printable(text))


@pytest.mark.parametrize("text", ["", "a\tb\nc", "größer 円 👩\u200d🔬", "ends\n", "C:\\x1b"])
def test_text_stays_as_it_is(text: str) -> None:
    """In every language; a line's end of Windows is a line's end."""
    assert text == printable(text) == sentence(text)
    assert text == printable(text.replace("\n", "\r\n"))


def test_a_sentence_keeps_our_colours_alone() -> None:
    """Red, green, yellow and their end."""
    assert "\x1b[31m2 of 3 failed\x1b[0m: ^[[Jx" == sentence("\x1b[31m2 of 3 failed\x1b[0m: \x1b[J\x1b[1;5mx")


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_output_keeps_colours_however_it_comes(size: int) -> None:
    """A sequence, or a letter of several bytes, may be split between two reads; nothing is held but its beginning."""
    data = f"50%\r100%\n\x1b[1;32mgrün\x1b[0m {CLIPBOARD}{CLEAR}円\x1b".encode() + b"\xff\xfe!"
    filtering = OutputFilter()
    shown = "".join(filtering.feed(data[n : n + size]) for n in range(0, len(data), size))

    assert "50%\r100%\n\x1b[1;32mgrün\x1b[0m ^[]52;c;cm0gLXJmIC8=^G^[[2J^[[H円^[<FF><FE>!" == shown
    assert "" == filtering.feed(b"\x1b[3")
    assert "\x1b[31m" == filtering.feed(b"1m")
    assert "^[[" in filtering.feed(b"\x1b[" + b"1;" * 40)


def test_every_sentence_of_the_command_line_is_filtered(tmp_path: Path) -> None:
    """On stdout and stderr, of tasks and of errors that end one, into a pipe and onto a terminal."""
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        "from dlami import output\n"
        "from invoke import Context, Exit\n"
        "from dlami.tasks.command import command\n"
        "from cluster.errors import ClusterError\n"
        "from cluster.terminal import painted, print_json\n"
        "output.install()\n"
        f"hostile = {CLIPBOARD + CLEAR!r}\n"
        "@command\n"
        "def fails(c): raise ClusterError('rank 3: ' + hostile)\n"
        "print(painted('ours', 'red'), hostile)\n"
        "print(hostile, file=sys.stderr)\n"
        "print_json({'line': hostile + chr(127)})\n"
        "try: fails(Context())\n"
        "except Exit as e: print(e.message, file=sys.stderr)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "NO_COLOR": ""}
    piped = subprocess.run([sys.executable, program], capture_output=True, text=True, env=environment, check=True)
    with Terminal(sys.executable, program, folder=tmp_path, env=environment) as terminal:
        assert 0 == terminal.ended()
        shown = terminal.text

    for said in (piped.stdout + piped.stderr, shown):
        assert 3 == said.count("^[]52;c;cm0gLXJmIC8=^G^[[2J^[[H")
        assert not set(said) & {"\x07", "\x9b"}
    assert "\x1b[31mours\x1b[0m ^[]52" in shown
    assert 2 == shown.count("\x1b")
    assert CLIPBOARD + CLEAR + "\x7f" == json.loads(piped.stdout[piped.stdout.index("{") :])["line"]


def test_json_has_no_control_character(capsys: pytest.CaptureFixture[str]) -> None:
    """DEL is the one that JSON does not escape by itself."""
    print_json({"a": "\x7f\x1b\x9b"}, one_line=True)

    said = capsys.readouterr().out
    assert said.rstrip("\n").isprintable()
    assert {"a": "\x7f\x1b\x9b"} == json.loads(said)


def test_a_frame_of_top_shows_no_control_character() -> None:
    """Neither of a job's cause nor of what a host says of its GPUs."""
    job = JobSeen(
        id="x", name="x", state="retrying", attempt=1, np=2, hosts=(), step=None, steps=None, images_per_s=None,
        started="", cause=f"rank 3: {CLIPBOARD}",
    )  # fmt: skip
    hostile = frame(seen(0), seen(1, sight=Visibility.GONE, why=TITLE), jobs=(job,))
    shown = [line.plain for line in lines(hostile, View(), 200, None)]

    assert any("rank 3: ^[]52;c;" in line for line in shown)
    assert all(line.isprintable() for line in shown)


def test_a_command_s_output_is_raw_only_where_nothing_interprets_it(lab: Lab, tmp_path: Path) -> None:
    """In a pipe, or as asked with --raw; a terminal gets the colours, and sees the rest."""
    environment = {**os.environ, "CLUSTER": f"lab:{lab.name}", "XDG_CACHE_HOME": str(tmp_path), "TERM": "xterm"}
    bell = "\x1b[32mok\x1b[0m\x1b]0;x\x07"

    def run(*options: str) -> list[object]:
        script = "printf '\\033[32mok\\033[0m\\033]0;x\\007'"
        return [sys.executable, "-m", "invoke", "run", "--hosts", "1", *options, "--", script]

    def on_terminal(*options: str) -> str:
        with Terminal(*run(*options), folder=ROOT, env=environment) as terminal:
            assert 0 == terminal.ended()
            return terminal.text

    piped = subprocess.run([str(w) for w in run()], cwd=ROOT, capture_output=True, text=True, env=environment)
    assert bell in piped.stdout
    for live in ((), ("--live",)):
        assert bell in on_terminal(*live, "--raw")
        shown = on_terminal(*live)
        assert "\x1b[32mok\x1b[0m^[]0;x^G" in shown
        assert "\x07" not in shown
