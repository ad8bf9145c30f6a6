"""What blocks and costs are shown, asked about and bought, between the command line and AWS."""

import datetime
import io
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cfn import capacity_blocks, stack
from cluster import terminal
from cluster.clusterfile import text
from cluster.errors import ConfigError, NothingToDo
from dlami.tasks import cost_actions
from tests.cfn.answers import account


class Offer:
    """A block on offer."""

    id, price, currency, zone = "cb-1", 1234.5, "USD", "us-east-1a"

    def __str__(self) -> str:
        return "block cb-1"

    def as_json(self) -> dict[str, Any]:
        return {"id": self.id}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A cluster file of three hosts; nobody at a terminal."""
    found = tmp_path / "cluster.toml"
    found.write_text(text.render({"name": "demo", "nodes.workers": 2, "access.ssh_from": "203.0.113.7/32"}))
    monkeypatch.setattr(cost_actions, "Aws", lambda region: account())
    types(monkeypatch)
    return str(found)


def types(patch: pytest.MonkeyPatch, *lines: str) -> None:
    stdin = io.StringIO("".join(f"{line}\n" for line in lines))
    patch.setattr(stdin, "isatty", lambda: bool(lines), raising=False)
    patch.setattr(terminal.sys, "stdin", stdin)


def test_blocks_are_offered_for_as_many_as_the_cluster_has(
    path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Or as many as are asked for; none on offer is a sentence, in JSON an empty list."""
    offers: list[Offer] = [Offer()]
    asked: list[Any] = []
    monkeypatch.setattr(
        capacity_blocks,
        "offers",
        lambda aws, kinds, number, days, since=None: asked.append((number, days, since)) or offers,
    )

    cost_actions.show_blocks(path, 7, 0, "", False)
    assert capsys.readouterr().out == "block cb-1\n"
    cost_actions.show_blocks(path, 1, 5, "2027-01-15", True)
    assert json.loads(capsys.readouterr().out) == [{"id": "cb-1"}]
    offers.clear()
    cost_actions.show_blocks(path, 1, 5, "", False)
    assert re.fullmatch(
        "AWS offers no block of 5 x .* for 1 day: try fewer, shorter, or later\n", capsys.readouterr().out
    )
    cost_actions.show_blocks(path, 1, 5, "", True)
    assert json.loads(capsys.readouterr().out) == []

    day = datetime.datetime(2027, 1, 15, tzinfo=datetime.UTC)
    assert asked == [(3, 7, None), (5, 1, day), (5, 1, None), (5, 1, None)]
    with pytest.raises(ConfigError, match="--since 'tomorrow': write a day like 2027-01-15"):
        cost_actions.show_blocks(path, 1, 5, "tomorrow", False)


def test_a_block_is_bought_after_its_name_and_its_price(
    path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Either no buys nothing, nor does --dry-run, nor who is not at a terminal."""
    bought: list[tuple[str, str]] = []
    asked: list[Any] = []
    monkeypatch.setattr(
        capacity_blocks, "offers", lambda aws, kinds, number, days: asked.append((number, days)) or [Offer()]
    )
    monkeypatch.setattr(capacity_blocks, "pick", lambda offers, name: offers[0])
    monkeypatch.setattr(capacity_blocks, "buy", lambda aws, offer, name: bought.append((offer.id, name)) or "cr-1")

    cost_actions.buy_block(path, 7, 0, "cb-1", True, False)
    assert capsys.readouterr() == ("would buy cb-1\n", "block cb-1\n")
    cost_actions.buy_block(path, 7, 4, "cb-1", True, True)
    assert json.loads(capsys.readouterr().out) == {"id": "cb-1"}
    assert asked == [(3, 7), (4, 7)]
    with pytest.raises(ConfigError, match="--buy asks twice: run it on a terminal"):
        cost_actions.buy_block(path, 7, 0, "cb-1", False, False)
    for words in (("no",), ("demo", "1234"), ("1234.50", "demo")):
        types(monkeypatch, *words)
        with pytest.raises(NothingToDo):
            cost_actions.buy_block(path, 7, 0, "cb-1", False, False)
    assert bought == []
    capsys.readouterr()
    types(monkeypatch, "demo", "1234.50")
    cost_actions.buy_block(path, 7, 0, "cb-1", False, False)
    out = capsys.readouterr().out
    assert "This pays 1,234.50 USD at once; it cannot be given back or moved. Type demo to go on: " in out
    assert out.endswith(
        "cr-1 is bought; in the cluster file:\n"
        '    nodes.capacity = "capacity-block"\n'
        '    nodes.reservation = "cr-1"\n'
        '    network.zone = "us-east-1a"\n'
    )
    types(monkeypatch, "demo", "1234.50")
    cost_actions.buy_block(path, 7, 0, "cb-1", False, True)
    assert '"nodes.reservation": "cr-1"' in capsys.readouterr().out
    assert bought == [("cb-1", "demo")] * 2


class Found:
    """A cost with hosts that go on or not."""

    def __init__(self, goes_on: bool) -> None:
        self.hosts = [SimpleNamespace(span=SimpleNamespace(ends=None if goes_on else 1.0))]

    def __str__(self) -> str:
        return "cost"

    def as_json(self) -> dict[str, Any]:
        return {"cost": 1}


@pytest.mark.parametrize(
    ("there", "of_eks", "goes_on", "no_jobs", "shown", "said"),
    [
        (["demo"], False, True, False, "hosts, forecast by hosts", ""),
        (["demo"], False, False, False, "hosts", ""),
        (["demo"], False, True, True, "hosts", ""),
        (["demo-eks"], False, True, False, "eks, forecast by pods", ""),
        (["demo", "demo-eks"], False, True, False, "hosts, forecast by hosts", "demo-eks is there, too: inv stack.cost --eks\n"),
        (["demo", "demo-eks"], True, True, False, "eks, forecast by pods", ""),
        ([], True, True, False, "eks, forecast by pods", ""),
        ([], False, True, False, "hosts, forecast by hosts", ""),
    ],
)  # fmt: skip
def test_the_cost_is_that_of_the_cluster_that_is_meant(
    path: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    there: list[str],
    of_eks: bool,
    goes_on: bool,
    no_jobs: bool,
    shown: str,
    said: str,
) -> None:
    """The only one there, or the one that is asked for; with a forecast while it goes on."""
    shows: list[str] = []

    def found(which: str) -> Found:
        shows.append(which)
        return Found(goes_on)

    monkeypatch.setattr(stack, "find", lambda aws, name: name if name in there else None)
    monkeypatch.setattr(cost_actions.cost, "cluster_cost", lambda aws, file: found("hosts"))
    monkeypatch.setattr(cost_actions.eks_cost, "cluster_cost", lambda aws, file: found("eks"))
    monkeypatch.setattr(cost_actions, "_left_on_hosts", lambda folder: shows.append("forecast by hosts"))
    monkeypatch.setattr(cost_actions, "_left_on_pods", lambda folder: shows.append("forecast by pods"))
    monkeypatch.setattr(cost_actions, "_with_forecast", lambda found, ask: (ask(), found)[1])

    cost_actions.show_cost(path, no_jobs, True, of_eks=of_eks)

    out, err = capsys.readouterr()
    assert (", ".join(shows), json.loads(out), err) == (shown, {"cost": 1}, said)
