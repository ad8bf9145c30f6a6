"""The record of a lab: read from another version's hand, and damaged."""

import json
from pathlib import Path

import pytest

from cluster import locate
from cluster.errors import ConfigError
from lab import lab as labs
from lab import neighbours, record
from lab.record import Lab, LabHost, load_lab


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A lab on record, of which nothing is made."""
    for module in (record, neighbours, locate):
        monkeypatch.setattr(module, "LABS", tmp_path)
    made = Lab(name="one", network="10.1.0.0/22", hosts=(LabHost(rank=0, name="one-0", address="10.1.0.1", slots=2),))
    made.write()
    return made


def test_a_record_of_a_newer_version_is_read(lab: Lab) -> None:
    """What it has besides is passed over."""
    file = lab.folder / "lab.json"
    fields = json.loads(file.read_text())
    file.write_text(json.dumps({**fields, "weather": "fair", "hosts": [{**h, "colour": 1} for h in fields["hosts"]]}))

    assert lab == load_lab("one")


@pytest.mark.parametrize("damage", ["", "[]", "{", '{"name": "one"}', '{"name": "one", "network": 3, "hosts": []}'])
def test_a_damaged_record_is_named_and_hides_no_other_lab(lab: Lab, damage: str) -> None:
    """What removes it is said; other labs are counted as before."""
    (lab.folder.parent / "two").mkdir()
    (lab.folder.parent / "two" / "lab.json").write_text(damage)

    with pytest.raises(ConfigError, match=r"two/lab\.json is damaged .*inv lab\.down --name two"):
        load_lab("two")
    assert [1] == neighbours.sizes()


def test_spares_come_after_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its own address and name; only who comes after the hosts that train is a spare."""
    monkeypatch.setattr(labs, "build", lambda lab: lab)
    made = labs._build("one", 2, 4, 2, may_mount=True)

    assert [False, False, True, True] == [h.is_spare for h in made.hosts]
    assert ["one-0", "one-1", "one-2", "one-3"] == [h.name for h in made.hosts]
    assert 4 == len({h.address for h in made.hosts})
    assert ({4}, True) == ({h.slots for h in made.hosts}, made.may_mount)
