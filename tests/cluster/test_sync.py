"""What `inv sync` says of each host, and of what is still to be done: its words, without a host."""

import json
from pathlib import Path
from typing import Any

import pytest

from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.setup import project
from cluster.setup.project import Synced, lines
from tests.typed_words import typed

HOSTS = tuple(Host(rank=r, address=f"gpu{r}", slots=8) for r in range(4))
CLUSTER = Cluster(name="c", hosts=HOSTS, folder=Path(), shared="/efs", project="/opt/p")
REST = "the packages are to be installed on gpu[0-1]: inv run -- /opt/p/scripts/install.sh"
NEW, REFUSED = (
    [Synced(h, changed=2, some=("a", "b"), needs_install=True) for h in HOSTS[:2]],
    Synced(HOSTS[3], error="disk full", needs_install=True),
)


@pytest.mark.parametrize(
    ("words", "done", "code", "err"),
    [
        ((), NEW, 0, f"{REST}\n"),
        ((), [*NEW, REFUSED], 1, f"{REST}\n"),
        (("--dry-run",), NEW, 0, ""),
        ((), [Synced(HOSTS[2])], 0, ""),
        (("--json",), NEW, 0, ""),
    ],
)
def test_what_is_still_to_be_done_is_said_once_it_is(
    words: Any, done: Any, code: int, err: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not of what only would be brought; the exit code says whether all have it."""
    monkeypatch.setattr("dlami.tasks.files.load_cluster", lambda: CLUSTER)
    monkeypatch.setattr(project, "sync", lambda *_, **__: tuple(done))

    assert code == typed("sync", *words)
    said = capsys.readouterr()
    assert err == said.err
    if "--json" in words:
        assert [one.record() for one in done] == [json.loads(line) for line in said.out.splitlines()]
    else:
        assert f"{lines(done)}\n" == said.out
