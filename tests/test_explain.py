"""`inv explain`: a message as a terminal shows it leads to its cause and its remedy."""

import json

import pytest

from cluster.errors import ConfigError
from dlami import explain
from dlami.explain import find_entries
from dlami.program import main


def test_a_message_is_found_inside_what_was_printed() -> None:
    """Names, numbers, capitals and broken lines around the quoted part do not matter."""
    found = find_entries("1 of 3 hosts failed\n10.0.0.7: It refuses\n   connections: is sshd running there?")
    assert len(found) == 1
    assert "sshd is not" in found[0].cause


def test_words_of_a_message_are_enough() -> None:
    """The entries that share most words come first."""
    assert "driver" in find_entries("nvidia-smi answer within 30 s")[0].cause


def test_every_entry_explains_itself() -> None:
    """Whoever pastes a symptom of the page gets its row."""
    for entry in explain.all_entries():
        assert entry in find_entries(entry.symptom)


@pytest.mark.parametrize("text", ["", " \n", "xyzzy plugh"])
def test_what_nothing_explains_is_an_error_with_a_next_step(text: str) -> None:
    """No guess is printed as an answer."""
    with pytest.raises(ConfigError, match="inv "):
        find_entries(text)


def test_the_task_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` has the three parts of each entry."""
    main(["dlami", "explain", "--json", "it refuses connections: is sshd running there?"])
    (entry,) = json.loads(capsys.readouterr().out)
    assert entry.keys() == {"symptom", "cause", "remedy"}
