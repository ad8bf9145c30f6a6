"""One rule for what `hosts.write` writes: nothing that a person changed is lost without --force, which says what it was."""

from pathlib import Path

import pytest

from cluster import written
from cluster.errors import ConfigError, NothingToDo
from cluster.hosts import parse_hostfile


def write(path: Path, text: str, force: bool = False) -> str:
    return written.write([written.whole_file(path, text)], force=force)


def test_what_we_wrote_is_written_anew_without_a_question(tmp_path: Path) -> None:
    """A successor's address, another lab: nobody's work is lost. Twice the same is nothing to do."""
    path = tmp_path / "hosts"
    write(path, "10.0.0.1 slots=1\n")
    write(path, "10.0.0.2 slots=1\n")
    assert ["10.0.0.2"] == [h.address for h in parse_hostfile(path.read_text(), "hosts")]
    with pytest.raises(NothingToDo):
        write(path, "10.0.0.2 slots=1\n")


@pytest.mark.parametrize(
    ("old", "mine"),
    [
        ("10.0.0.2 slots=8\n", "10.0.0.2 slots=4\n"),  # a changed line
        ("10.0.0.1 slots=8\n", "# mine\n10.0.0.1 slots=8\n"),  # a comment above
        (written.MARK, "10.9.9.9 slots=8\n" + written.MARK),
    ],
)
def test_an_edited_file_is_kept_until_it_is_forced(old: str, mine: str, tmp_path: Path) -> None:
    """The message shows the lines that would be lost; with --force they are said too."""
    path = tmp_path / "hosts"
    write(path, "10.0.0.1 slots=8\n10.0.0.2 slots=8\n")
    edited = path.read_text().replace(old, mine)
    path.write_text(edited)
    with pytest.raises(ConfigError, match="add --force") as error:
        write(path, "10.0.0.3 slots=8\n")
    assert edited == path.read_text()
    assert "-" + mine.split("\n")[0] in str(error.value)

    assert mine.split("\n")[0] in write(path, "10.0.0.3 slots=8\n", force=True)
    assert ["10.0.0.3"] == [h.address for h in parse_hostfile(path.read_text(), "hosts")]


@pytest.mark.parametrize("text", ["10.7.7.7 slots=8\n", "no mark at all"])
def test_a_file_that_we_did_not_write_is_a_persons(text: str, tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text(text)
    with pytest.raises(ConfigError, match="was written by hand and would be lost"):
        write(path, "10.0.0.3 slots=8\n")


def test_a_way_in_that_a_person_wrote_is_kept(tmp_path: Path) -> None:
    """Our own gateway of yesterday is replaced, a bastion of the operator's is not."""
    path = tmp_path / "cluster.toml"
    path.write_text('[ssh]\nuser = "me" # me\n')
    written.write([written.some_fields(path, "ssh", {"gateway": "203.0.113.5"})], force=False)
    written.write([written.some_fields(path, "ssh", {"gateway": "203.0.113.6"})], force=False)
    assert "203.0.113.6" in path.read_text() and 'user = "me" # me' in path.read_text()

    path.write_text('[ssh]\ngateway = "bastion"\n')
    with pytest.raises(ConfigError, match=r'ssh\.gateway is "bastion", would be "203\.0\.113\.7"'):
        written.write([written.some_fields(path, "ssh", {"gateway": "203.0.113.7"})], force=False)
    written.write([written.some_fields(path, "ssh", {"gateway": "203.0.113.7"})], force=True)
    assert "bastion" not in path.read_text()


def test_an_empty_file_is_nobodys_work(tmp_path: Path) -> None:
    """Nothing would be lost, so nobody is asked; nor by a field that is set to nothing."""
    for text in ("", "\n  \n"):
        (tmp_path / "hosts").write_text(text)
        target = written.whole_file(tmp_path / "hosts", "10.0.0.1 slots=8\n")
        assert () == target.lost
        assert "" == written.write([target], force=False)
        assert "10.0.0.1" in (tmp_path / "hosts").read_text()
    (tmp_path / "cluster.toml").write_text('[ssh]\ngateway = ""\n')
    assert () == written.some_fields(tmp_path / "cluster.toml", "ssh", {"gateway": "10.0.0.1"}).lost
