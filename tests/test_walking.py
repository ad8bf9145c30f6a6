"""A test that walks many cases says which of them fail."""

from pathlib import Path

import pytest

from tests.walking import walked


def test_every_case_is_checked_and_those_that_fail_are_in_a_table(tmp_path: Path) -> None:
    """One that fails hides no other; fixtures are handed on."""

    @walked("n", range(5))
    def check(n: int, folder: Path) -> None:
        (folder / str(n)).touch()
        assert n % 2 == 0, f"{n} is odd"

    with pytest.raises(AssertionError, match=r"^2 of 5 cases fail:\n1 \| 1 is odd\n(.*\n)+3 \| 3 is odd\n"):
        check(folder=tmp_path)
    assert {"0", "1", "2", "3", "4"} == {p.name for p in tmp_path.iterdir()}
