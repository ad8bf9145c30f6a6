"""Small answers about jobs and ways in, at their borders: which job is meant, whether it trains, what a mode may do."""

from pathlib import Path

import pytest

from cluster.errors import ConfigError
from cluster.jobs.records import find


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """A shared folder's jobs, with what is none beside them."""
    for name in ("1-a", "1-ab", "2-c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state.json").write_text("{}")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "empty").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("which", "says"),
    [
        ("1-", "'1-' could be any of 1-a, 1-ab: give more of it"),
        ("x", "no job 'x' in "),
        ("empty", "no job 'empty' in "),
        ("last", "no job 'last' in "),
    ],
)
def test_a_job_that_is_none_or_several_is_refused(jobs: Path, which: str, says: str) -> None:
    """With those that it may be; a folder that is not there is said to be away."""
    with pytest.raises(ConfigError) as error:
        find(jobs, which)
    assert str(error.value).startswith(says)
    assert "which is not there" not in str(error.value)
    with pytest.raises(ConfigError, match="which is not there: is the shared folder mounted on the master"):
        find(jobs / "away", which)


def test_of_many_jobs_that_it_could_be_ten_are_named(tmp_path: Path) -> None:
    """And how many more there are: thousands of ids help nobody."""
    for n in range(1012):
        (tmp_path / f"job-{n:04}").mkdir()
        (tmp_path / f"job-{n:04}" / "state.json").touch()
    with pytest.raises(ConfigError, match=r"job-0000, .*, job-0009 and 1,002 more: give more of it$"):
        find(tmp_path, "job")
