"""Waiting for a fact in a test, and what finds those that do not."""

from pathlib import Path

import pytest

from tests import conftest


def test_what_is_still_to_come_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file, a row, a field; what never comes is named as the reason, and what is wrong is not waited for."""
    looks = iter(["no file", "no row", "no", "yes"])
    rows: dict[str, list[bool]] = {"no row": [], "no": [False], "yes": [True]}

    def is_so() -> bool:
        look = next(looks)
        return rows[look][0] if look in rows else bool((tmp_path / look).read_text())

    conftest.wait_for(is_so, 0.0, "it is so", look_s=0.0)
    assert [] == list(looks)

    monkeypatch.setattr(conftest, "PATIENCE_S", 0.0)
    with pytest.raises(AssertionError, match=r"^not within 0 s: it comes$") as never:
        conftest.wait_for(lambda: rows["yes"][1], 0.0, "it comes", look_s=0.0)
    assert isinstance(never.value.__cause__, IndexError)
    with pytest.raises(TypeError):
        conftest.wait_for(lambda: rows is not None and rows["no"][0] < "", 0.0, "it comes")
