"""The order of the tests is a seed's, the same in every process of a run."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.inventory import ROOT
from tests.left_out import SLOW_FIXTURES, fixtures_of
from tests.order import AS_WRITTEN, LONGEST, TRAININGS, in_order


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


def test_a_seed_draws_one_order_and_another_seed_another() -> None:
    """Of the files and within each; a file is worked on in one piece."""
    orders: list[list[Any]] = [list(in_order(PURE, seed)) for seed in ("1", "1", "2")]
    one, same, other = orders

    assert one == same != other
    assert sorted(map(id, PURE)) == sorted(map(id, one))
    files = [t.path.stem for t in one]
    assert 6 == 1 + sum(a != b for a, b in itertools.pairwise(files))
    assert list(range(10)) != [t.number for t in one[:10]]


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
