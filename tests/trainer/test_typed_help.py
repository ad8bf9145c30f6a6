"""What a trainer says of its flags' help is what people type."""

import re

from cluster.inventory import ROOT
from dlami.collection import ns
from trainer.common.files.commandline import typed_help


def test_a_hint_names_a_task() -> None:
    """Of every program of the package."""
    text = "".join(path.read_text() for path in (ROOT / "trainer").rglob("*.py"))
    programs = re.findall(r"(?:prog=|Config, )\"(python -m [\w.]+)\"", text)
    assert len(programs) > 10
    for program in programs:
        hint = typed_help(program)
        named = re.fullmatch(r"'inv (?:--help )?([\w.-]+)(?: -- --help)?'", hint)
        assert named and named[1] in ns.task_names, hint
