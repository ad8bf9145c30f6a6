"""The order of the tests is a seed's, the same in every process of a run."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.inventory import ROOT
from tests.left_out import SLOW_FIXTURES, fixtures_of
from tests.order import AS_WRITTEN, BETWEEN, LONGEST, TRAININGS, in_order


class Listed:
    """As pytest collects them."""

    def __init__(self, file: str, number: int, *marks: str, value: int | None = None) -> None:
        self.path, self.number = ROOT / "tests" / file, number
        self.marks = [getattr(pytest.mark, m).mark for m in marks]
        if value is not None:
            scopes = {"made": SimpleNamespace(value="module")}
            self.callspec = SimpleNamespace(indices={"made": value}, _arg2scope=scopes)

    def iter_markers(self) -> Any:
        """Its marks."""
        return iter(self.marks)


PURE: list[Any] = [Listed(f"{file}.py", n) for file in "abcdef" for n in range(10)]
HOSTS: list[Any] = [Listed(f"hosts_{file}.py", n, "lab") for file in "uvwxyz" for n in range(5)]
LONG: list[Any] = [Listed(LONGEST[0], n, "slow") for n in range(3)]


def test_a_seed_draws_one_order_and_another_seed_another() -> None:
    """Of the files and within each; a file is worked on in one piece."""
    orders: list[list[Any]] = [list(in_order(PURE, seed)) for seed in ("1", "1", "2")]
    one, same, other = orders

    assert one == same != other
    assert sorted(map(id, PURE)) == sorted(map(id, one))
    files = [t.path.stem for t in one]
    assert 6 == 1 + sum(a != b for a, b in itertools.pairwise(files))
    assert list(range(10)) != [t.number for t in one[:10]]


def test_long_files_come_first_and_each_is_in_an_order_of_its_own() -> None:
    """Those with tests on hosts next; which file is next to which is drawn, and what is first in a file."""
    found: list[Any] = list(in_order([*PURE, *HOSTS, *LONG], "1"))
    on_hosts = found[len(LONG) : len(LONG) + len(HOSTS)]

    assert LONG == found[: len(LONG)], "what trains here stays as it is written"
    assert set(map(id, HOSTS)) == set(map(id, on_hosts))
    files = [list(tests) for _, tests in itertools.groupby(on_hosts, key=lambda t: t.path)]
    assert 6 == len(files)
    assert 1 < len({tuple(t.number for t in tests) for tests in files})
    assert [*LONG, *HOSTS, *PURE] == in_order([*PURE, *HOSTS, *LONG], "")


def test_a_story_stays_in_its_order_and_what_shares_a_parameter_stays_together() -> None:
    """The rest of the file is drawn around it; what a module sets up for several tests is set up once for each value."""
    story: list[Any] = [Listed("a.py", n, *(["lab", "story"] if n in (2, 3, 7) else ["lab"])) for n in range(10)]
    drawn: list[list[Any]] = [list(in_order(story, str(seed))) for seed in range(20)]
    orders = [[t.number for t in tests] for tests in drawn]
    assert {(2, 3, 7)} == {(o[2], o[3], o[7]) for o in orders}
    assert all(sorted(o) == list(range(10)) for o in orders)
    assert 10 < len({tuple(o) for o in orders})

    shared: list[Any] = [Listed("a.py", n, value=n % 2) for n in range(10)]
    for seed in range(20):
        found: list[Any] = list(in_order(shared, str(seed)))
        values = [t.callspec.indices["made"] for t in found]
        assert 1 == sum(a != b for a, b in itertools.pairwise(values))


def test_what_trains_is_spread_over_what_waits() -> None:
    """Three processes that train at once would wait for two processors, and nothing would train beside what waits."""
    trains: list[Any] = [Listed(name, 0, "slow") for name in TRAININGS[:3]]
    found: list[Any] = list(in_order([*PURE, *HOSTS, *reversed(trains)], ""))

    files = [path for path, _ in itertools.groupby(found, key=lambda t: t.path)]
    assert [t.path for t in trains] == files[: 3 * (BETWEEN + 1) : BETWEEN + 1]
    assert [*HOSTS, *PURE] == [t for t in found if t not in trains]


def test_every_file_that_is_named_exists() -> None:
    """Under its name of today."""
    assert [] == [name for name in (*LONGEST, *TRAININGS, *AS_WRITTEN) if not (ROOT / "tests" / name).exists()]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_parameter_called_like_a_fixture_makes_no_test_slow(request: pytest.FixtureRequest, ranks: int) -> None:
    """It would be left out of quick runs without a word; a fixture of that name marks as before."""
    assert {"ranks"} == SLOW_FIXTURES & set(request.fixturenames)
    assert not any(request.node.iter_markers("slow"))
    taken = SimpleNamespace(fixturenames=["ranks", "tmp_path", "n"], callspec=SimpleNamespace(params={"n": 1}))
    assert {"ranks", "tmp_path"} == fixtures_of(taken)
    assert {"ranks"} == fixtures_of(SimpleNamespace(fixturenames=["ranks"]))
