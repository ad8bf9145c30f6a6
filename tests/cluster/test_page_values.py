"""What a job's page is made of, value by value: curves, axes, shares, tables, and what is read of its folder."""

import base64
import dataclasses
import json
import re
from pathlib import Path
from typing import Any, cast

import pytest

from cluster.commandline.jobpages import file_name
from cluster.errors import ConfigError
from cluster.healing.account import Account, Spent
from cluster.healing.ending import Ending
from cluster.healing.history import AttemptRecord
from cluster.healing.memory import FORGIVEN, Entry, note
from cluster.jobpage import chart, facts, heat, sections, slow_ranks
from cluster.jobpage.attempts import _attempt_row, _time_bars
from cluster.jobpage.chart import Band, Line, Range, described, number, steps_of, ticks
from cluster.jobpage.compare import _short, differences_text, require_different
from cluster.jobpage.curve_charts import _further, _how_reduced, bands_of, lines_of
from cluster.jobpage.curves import Bucket, Curve, CurveBuckets
from cluster.jobpage.host_facts import _listed, _ranks, hosts_seen, rank_hosts
from cluster.jobpage.markup import facts as named
from cluster.jobpage.markup import joined, table, tag, text
from cluster.jobpage.metrics import Measured, read_metrics, record_of
from cluster.jobpage.rank_map import LEVELS, RankBuckets, RankMap, _shares, level_of, share_of, stragglers
from cluster.jobpage.sections import outcome, scores
from cluster.jobpage.settings import flags_of, outcomes
from cluster.jobpage.slow_ranks import clock
from cluster.jobs.record import JobPaths
from cluster.jobs.state import JobState
from tests.cluster.made_job import PNG, made_job


def a_curve(*values: tuple[int, float], most: int = 400, kind: str = "train", name: str = "loss") -> Curve:
    buckets = CurveBuckets(most=most)
    for step, value in values:
        buckets.add(step, value)
    return buckets.curve(kind, name)


def a_bucket(first: int, last: int, count: int, least: float, mean: float, largest: float) -> Bucket:
    return Bucket(first=first, last=last, count=count, least=least, mean=mean, largest=largest)


def test_buckets_become_twice_as_wide_and_keep_what_was_in_them() -> None:
    """In whatever order steps come; sums, borders and counts are those of the values."""
    curve = a_curve((5, 8.0), (0, 1.0), (1, 3.0), (4, 2.0), (2, -1.0), most=2)

    assert (a_bucket(0, 2, 3, -1.0, 1.0, 3.0), a_bucket(4, 5, 2, 2.0, 5.0, 8.0)) == curve.buckets
    assert (4, "train", "loss") == (curve.width, curve.kind, curve.name)
    assert (5, 0, 4, 2.6) == (curve.newest.last, curve.lowest.first, curve.highest.first, pytest.approx(curve.mean))
    far = a_curve((0, 1.0), (1, 1.0), (2, 1.0), (8, 1.0), (2, 5.0), most=3)
    assert [(0, 1, 2), (2, 2, 2), (8, 8, 1)] == [(b.first, b.last, b.count) for b in far.buckets]
    narrow = a_curve((3, 1.0), (2, 5.0), (3, 3.0))
    assert (a_bucket(2, 2, 1, 5.0, 5.0, 5.0), a_bucket(3, 3, 2, 1.0, 2.0, 3.0)) == narrow.buckets
    assert 1 == narrow.width


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0, "0"), (0.001, "0.001"), (0.00099, "9.900e-04"), (-0.5, "-0.5"), (12.346, "12.35"), (1234.6, "1,235"),
        (999_000, "999,000"), (1e6, "1.000e+06"), (-2e7, "-2.000e+07"), (3.0, "3"),
    ],
)  # fmt: skip
def test_a_number_has_four_digits_that_count(value: float, written: str) -> None:
    """Very small and very large ones with a power of ten."""
    assert written == number(value)


@pytest.mark.parametrize(
    ("low", "high", "most", "found"),
    [
        (0, 10, 6, [0, 2, 4, 6, 8, 10]), (0, 10, 5, [0, 5, 10]), (3, 97, 6, [20, 40, 60, 80]), (0, 1, 1, [0, 1]),
        (-1, 1, 3, [-1, 0, 1]), (0.12, 0.19, 8, [0.12, 0.13, 0.14, 0.15, 0.16, 0.17, 0.18, 0.19]),
    ],
)  # fmt: skip
def test_an_axis_has_its_round_numbers(low: float, high: float, most: int, found: list[float]) -> None:
    """Apart by 1, 2 or 5 times a power of ten, its ends among them where they are round."""
    assert found == ticks(low, high, most)


def test_a_value_lies_where_the_axis_has_it() -> None:
    """From 0 to 10,000 between the ends of the axis; an axis of one step or one value has some room."""
    axis = Range(low=10, high=20)
    assert [0, 5000, 10000, 15000] == [axis.place(v) for v in (10, 15, 20, 25)]
    one, more = Line(curve=a_curve((7, 3.0)), label="a"), Line(curve=a_curve((3, 1.0), (9, -1.0)), label="b")
    assert (Range(low=7, high=8), Range(low=3, high=9)) == (steps_of([one]), steps_of([one, more]))
    assert Range(low=-1.0, high=3.0) == chart._values([one, more])


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        ((1.0, 4.0), 0.0, 4.0), ((4.0, 10.0), 4.0, 10.0), ((3.9, 10.0), 0.0, 10.0), ((0.0, 5.0), 0.0, 5.0),
        ((-1.0, 5.0), -1.0, 5.0), ((3.0, 3.0), 1.5, 4.5), ((0.0, 0.0), -0.5, 0.5), ((-4.0, -4.0), -6.0, -2.0),
    ],
)  # fmt: skip
def test_an_axis_of_values_begins_at_nothing_where_that_is_near(
    values: tuple[float, float], low: float, high: float
) -> None:
    """Near is less than two fifths of the largest; where all are equal they are in the middle."""
    line = Line(curve=a_curve(*enumerate(values)), label="a")
    assert Range(low=low, high=high) == chart._values([line])


def test_a_curve_is_told_in_words() -> None:
    """One value by itself; of several the first, the last, and between what they all are."""
    one = Line(curve=a_curve((1200, 3.0)), label="loss")
    twice = Line(curve=a_curve((5, 3.0), (5, 1.0)), label="loss")
    several = Line(curve=a_curve((1, 3.0), (2, 9.0), (3000, 4.0)), label="loss")

    assert "loss: 3 at step 1,200." == described(one)
    assert "loss: 2 at step 5, 2 at step 5, between 1 and 3." == described(twice)
    assert "loss: 3 at step 1, 4 at step 3,000, between 3 and 9." == described(several)


def test_a_line_is_a_path_of_means_in_a_band() -> None:
    """Without a band where each value is there, dots where they are few; up is more."""
    steps, values = Range(low=0, high=10), Range(low=0, high=10)
    plain = Line(curve=a_curve((0, 0.0), (5, 5.0), (10, 10.0)), label="a")
    assert '<path class="mean c1" d="M0 10000 5000 5000 10000 0"/>' == chart._line(plain, 1, steps, values)
    dotted = dataclasses.replace(plain, dots=True)
    dots = '<path class="dots c2" d="M0 10000h0M5000 5000h0M10000 0h0"/>'
    assert dots == chart._line(dotted, 2, steps, values)
    assert ("●", "━") == tuple(re.findall("[●━]", chart._key(dotted, 1) + chart._key(plain, 1)))
    single = Line(curve=a_curve((5, 5.0)), label="a")
    assert '<path class="dots c1" d="M5000 5000h0"/>' == chart._line(single, 1, steps, values)
    wide = Line(curve=a_curve((0, 1.0), (1, 3.0), (8, 4.0), (9, 6.0), most=2), label="a")
    assert (
        '<path class="range c1" d="M500 7000 8500 4000 8500 6000 500 9000Z"/>'
        '<path class="mean c1" d="M500 8000 8500 5000"/>'
    ) == chart._line(wide, 1, steps, values)


def test_axes_have_their_numbers_beside_them() -> None:
    """Steps below, values to the left, the largest above."""
    places = [(float(x), words) for x, words in re.findall(r'x="([\d.]+)" y="214"[^>]*>([\d,]+)<', _axis("x"))]
    assert [(62, "0"), (223.5, "500"), (385, "1,000"), (546.5, "1,500"), (708, "2,000")] == places
    heights = [(float(y), words) for y, words in re.findall(r'x="56" y="([\d.]+)"[^>]*>([\d,]+)<', _axis("y"))]
    assert [(202.0, "0"), (107.0, "5"), (12.0, "10")] == heights


def _axis(which: str) -> str:
    return chart._x_axis(Range(low=0, high=2000)) if which == "x" else chart._y_axis(Range(low=0, high=10))


@pytest.mark.parametrize(("buckets", "rows"), [(1, 1), (16, 16), (17, 9), (33, 12), (40, 14)])
def test_a_table_beside_a_chart_has_some_of_its_values(buckets: int, rows: int) -> None:
    """At most sixteen, evenly, and the last."""
    line = Line(curve=a_curve(*((n, float(n)) for n in range(buckets))), label="a")
    said = chart._numbers("Loss", [line])
    assert rows == said.count('scope="row"')
    assert f'<td class="n">{buckets - 1}</td>' in said
    assert "each of" not in said


def test_a_table_of_wide_buckets_says_how_wide() -> None:
    """And the steps that each row is of."""
    said = chart._numbers("Loss", [Line(curve=a_curve((0, 1.0), (1, 3.0), (8, 4.0), (9, 6.0), most=2), label="a")])
    assert "Loss: some of the values, each of 2 steps" in said
    assert '<td class="n">0 to 1</td><td class="n">2</td><td class="n">1</td><td class="n">3</td>' in said


def test_attempts_are_bands_where_there_are_several() -> None:
    """Every second is shaded; one that is outside of the axis is at its end, and each is wide enough to be seen."""
    bands = [Band(number=n, first=10 * n, last=10 * n + 10, text=f"attempt {n}") for n in range(3)]
    drawn = chart._bands(bands, Range(low=5, high=25))
    assert [("0", "2500"), ("2500", "5000"), ("7500", "2500")] == re.findall(
        r'<rect x="(\d+)" y="0" width="(\d+)"', drawn
    )
    assert ["b0", "b1", "b0"] == re.findall(r'class="band (b\d)"', drawn)
    assert "<rect" not in chart._bands(bands[:1], Range(low=5, high=25))
    narrow = chart._bands([*bands[:1], Band(number=1, first=10, last=10, text="")], Range(low=0, high=20))
    assert ["5000", "20"] == re.findall(r'width="(\d+)" height="10000"', narrow)


def an_attempt(number_: int, first: int | None, step: int | None, **more: Any) -> AttemptRecord:
    return AttemptRecord(number=number_, np=4, hosts=("a", "b"), began=0.0, first_step=first, step=step, **more)


def test_of_steps_that_were_done_twice_the_later_attempt_has_them() -> None:
    """An attempt without a step has no band, nor has one that was done again as a whole."""
    history = [
        an_attempt(1, 0, 50), an_attempt(2, None, None), an_attempt(3, 40, 60), an_attempt(4, 30, 60),
        an_attempt(5, 60, None), an_attempt(6, 60, 60),
    ]  # fmt: skip
    assert [(1, 0, 40), (4, 30, 60), (6, 60, 60)] == [(b.number, b.first, b.last) for b in bands_of(history)]
    assert "attempt 1: steps 0 to 50 on a,b" == bands_of(history)[0].text


def test_few_scores_are_dots_and_many_a_line() -> None:
    """What training tells is a line; what nobody told is none."""
    many = tuple((n, 1.0) for n in range(30))
    measured = Measured(
        curves=(
            a_curve(*many[:29], kind="eval", name="top1"), a_curve(*many, kind="eval", name="loss"), a_curve((1, 2.0)),
        )
    )  # fmt: skip
    asked = [("eval", "top1", "top-1"), ("eval", "loss", "validation"), ("train", "loss", "training"), ("x", "y", "z")]
    assert [("top-1", True), ("validation", False), ("training", False)] == [
        (line.label, line.dots) for line in lines_of(measured, asked)
    ]


@pytest.mark.parametrize(
    ("first", "step", "what", "text_", "state", "steps", "how"),
    [
        (5, 1200, Ending.HOST, "", False, "5 to 1,200", str(Ending.HOST)),
        (5, None, None, "", True, "none", "goes on"),
        (None, 5, None, "", False, "none", "not known"),
        (0, 0, Ending.HOST, "host a was lost", True, "0 to 0", "host a was lost"),
    ],
)
def test_an_attempt_s_row_says_its_steps_and_how_it_ended(
    first: int | None, step: int | None, what: Ending | None, text_: str, state: bool, steps: str, how: str
) -> None:
    """In its own words where it has some; then what was done."""
    a = an_attempt(3, first, step, what=what, text=text_, then="it went on")
    job = type("Job", (), {"state": type("State", (), {"is_going": state})})
    row = _attempt_row(a, Spent(useful_s=90.0, start_s=30.0), cast("Any", job))
    assert ["3", steps] == [row[0], row[2]]
    assert f'{how}<span class="then"> Then: it went on</span>' == row[3]
    assert ["2.0", "1.5", "0.0", "0.0", "0.0", "0.0", "0.0", "0.5"] == row[4:]


def test_an_attempt_s_bar_is_as_long_as_it_took() -> None:
    """Each part after the one before, the longest attempt over the whole width; what is too thin is left out."""
    pairs = [
        (an_attempt(1, 0, 5), Spent(useful_s=75.0, start_s=25.0)),
        (an_attempt(2, 5, 9), Spent(useful_s=50.0, gate_s=0.01)),
    ]
    drawn = _time_bars(pairs)
    assert [("42.0", "4", "495.0"), ("537.0", "4", "165.0"), ("42.0", "24", "330.0")] == re.findall(
        r'<rect x="([\d.]+)" y="(\d+)" width="([\d.]+)"', drawn
    )
    assert ["t-useful", "t-start", "t-useful"] == re.findall(r'<g class="(t-\w+)"', drawn)
    assert ("16", "36") == tuple(re.findall(r'x="34" y="(\d+)"', drawn))
    assert 'viewBox="0 0 720 48"' in drawn
    assert "<rect" not in _time_bars([(an_attempt(1, None, None), Spent())])


def test_markup_is_ours_and_text_is_text() -> None:
    """Attributes that are none are left out; of what is closed by itself nothing is closed again."""
    assert '<a class="b" data-x="1" hidden>&lt;c&gt;2</a>' == tag(
        "a", "<c>", None, 2, class_="b", data_x=1, hidden=True, id=None, title=False
    )
    assert ("<br>", '<rect x="0"/>', "<path/>") == (tag("br"), tag("rect", x=0), tag("path"))
    assert "&quot;<b></b>" == joined('"', None, tag("b"))
    assert "<b></b>" == text(tag("b"))
    assert "a\ufffdb\n\tc" == text("a\x00b\n\tc")
    assert "<dl><dt>a</dt><dd>1</dd></dl>" == named({"a": 1, "b": "", "c": None})
    for bad in ("1a", "a b", ""):
        with pytest.raises(AssertionError):
            tag(bad)


def test_a_table_says_which_cells_are_heads() -> None:
    """The first of each row and all of the titles; numbers stand to the right."""
    made = table("T", ["a", "b"], [["x", 1]], numbers=frozenset({1}))
    assert '<thead><tr><th scope="col">a</th><th scope="col" class="n">b</th></tr></thead>' in made
    assert '<tbody><tr><th scope="row">x</th><td class="n">1</td></tr></tbody>' in made
    assert made.startswith('<div class="scroll" tabindex="0" role="region" aria-label="T"><table><caption>T</caption>')


@pytest.mark.parametrize(
    ("share", "level"), [(0.1, 1), (0.25, 1), (0.5, 31), (1.0, 60), (2.0, 90), (4.0, LEVELS), (9.0, LEVELS)]
)
def test_a_share_is_a_byte_and_back(share: float, level: int) -> None:
    """A quarter of the median is the least, four times it the most."""
    assert level == pytest.approx(level_of(share), abs=1)
    assert min(max(share, 0.25), 4.0) == pytest.approx(share_of(level_of(share)), rel=0.02)
    assert share_of(0) is None
    assert (0.25, 4.0) == (share_of(1), share_of(LEVELS))


@pytest.mark.parametrize(
    ("inputs", "computing", "shares"),
    [
        ([1.0, 0.0, 1.0], [1.0, 1.0, 3.0], [1.0, 0.5, 2.0]), ([1.0], [1.0, 1.0], []), (None, [1.0], []), ([1.0], None, []),
        ([1.0, 2.0], [0.0, 0.0], []), ([0.0, 0.0], [0.0, 1.0], [0.0, 2.0]), ([0.0] * 3, [0.0, 0.0, 1.0], []),
        ([1.0, -3.0, 1.0], [1.0] * 3, []), ([1.0, float("inf"), 1.0], [1.0] * 3, []), ([1.0], ["x"], []), ([], [], []),
        ([0.0] * 1024, [1.0] * 1024, [1.0] * 1024), ([0.0] * 1025, [1.0] * 1025, []),
    ],
)  # fmt: skip
def test_shares_are_of_the_median_where_all_ranks_are_timed(inputs: Any, computing: Any, shares: list[float]) -> None:
    """Nothing is said where one of them has no time, none was timed, or there are too many."""
    assert shares == _shares(inputs, computing)


def a_map(*rows: list[float]) -> RankMap:
    levels = bytes(level_of(s) if s else 0 for row in rows for s in row)
    return RankMap(
        ranks=len(rows), columns=len(rows[0]), start=100.0, column_s=10.0, levels=base64.b64encode(levels).decode()
    )


def test_who_was_waited_for_is_told_with_when_and_how_much() -> None:
    """The one that cost most first; gaps count for nothing, and at most so many are named."""
    found = a_map([1.0] * 4, [1.0, 2.0, 4.0, 1.0], [0, 2.0, 2.0, 2.0], [1.0, 2.0, 1.0, 2.0])
    first, second = stragglers(found)

    assert [2, 1] == [s.rank for s in stragglers(found)]
    assert [2] == [s.rank for s in stragglers(found, 1)]
    assert (1.0, 110.0, 2.0) == (
        first.slow,
        pytest.approx(first.worst_at, abs=20),
        pytest.approx(first.worst, rel=0.03),
    )
    assert (0.5, 120.0, 4.0, 2.0) == (second.slow, second.worst_at, second.worst, pytest.approx(second.mean, rel=0.03))


@pytest.mark.parametrize(("rows", "height"), [(1, 18), (2, 36), (8, 144), (100, 144), (200, 200), (600, 512)])
def test_a_map_is_as_high_as_its_ranks_need(rows: int, height: int) -> None:
    """Few are drawn thick, very many smaller than they are; it says from when to when it is, and who stands out."""
    drawn = slow_ranks._map_figure(a_map(*[[1.0, 1.0]] * rows), [0] if rows > 1 else [])
    assert f'style="height:{height}px"' in drawn
    assert (f"rank 0 above, rank {rows - 1} below" in drawn) is (rows > 1)
    assert "1970-01-01 00:01 to 1970-01-01 00:02 UTC, a column for each 10s" in drawn
    assert ("Slow at times: rank 0." if rows > 1 else "No rank stands out.") in drawn


def test_a_map_of_ranks_begins_with_its_first_record() -> None:
    """What is older counts for the first column; nothing that was timed is no map."""
    buckets = RankBuckets(most=2)
    assert buckets.rank_map() is None
    for at in (50.0, 49.0, 51.5, 52.5):
        buckets.add({"time": at, "rank_input_s": [0.0, 0.0, 1.0], "rank_compute_s": [1.0] * 3})
    buckets.add({"time": 99.0})
    found = buckets.rank_map()
    assert found
    assert (3, 2, 50.0, 2.0) == (found.ranks, found.columns, found.start, found.column_s)
    assert [[1.0, 1.0], [1.0, 1.0], [2.0, 2.0]] == [
        [pytest.approx(share, rel=0.02) for share in row] for row in found.shares()
    ]


def test_colours_mean_shares() -> None:
    """Each up to where the next begins; nothing known has a colour of its own."""
    words = [said for _, said in heat.meanings()]
    assert ["up to 0.6", "0.6 to 0.75", "more than 2.2"] == [*words[:2], words[-1]]
    assert [0, 1, 1, 2, 4, 5, 8, 8] == [heat._index(s) for s in (None, 0.1, 0.6, 0.61, 1.1, 1.2, 2.3, 99.0)]


def test_a_clock_is_a_date_to_the_minute() -> None:
    """In UTC; no number makes it fail."""
    assert ("1970-01-01 00:01", "at an unknown time") == (clock(61.0), clock(1e300))
    assert ("1-3, 5", "7", "") == (_listed([1, 2, 3, 5]), _listed([7]), _listed([]))


@pytest.mark.parametrize(
    ("change", "is_one"),
    [
        ({}, True), ({"step": 0}, True), ({"step": 1.0}, False), ({"step": True}, False), ({"step": -1}, False),
        ({"step": (1 << 53) - 1}, True), ({"step": 1 << 53}, False), ({"kind": 1}, False), ({"time": -1}, False),
        ({"time": 0}, True), ({"time": 2**35}, False), ({"time": "1"}, True), ({"time": None}, False),
    ],
)  # fmt: skip
def test_a_record_is_of_a_step_a_kind_and_a_time(change: dict[str, Any], is_one: bool) -> None:
    """Each of them one that can be; all else is no record."""
    line = json.dumps({"step": 1, "kind": "train", "time": 5.0, **change}).encode()
    assert is_one is (record_of(line) is not None)
    assert record_of(b"[]") is record_of(b"{") is record_of(b'{"step": 1}') is None


def test_metrics_are_curves_by_kind_and_name(tmp_path: Path) -> None:
    """Step, time and kind are none, nor is what is true or text; of curves there are forty at most."""
    file = tmp_path / "metrics.jsonl"
    one = {"step": 3, "time": 7.0, "kind": "train", "loss": 2, "is": True, "words": "x", "big": 1e300, "n" * 70: 1.0}
    other = {"step": 4, "time": 7.0, "kind": "eval", **{f"v{n}": float(n) for n in range(50)}, "loss": 5.0}
    file.write_text("".join(json.dumps(r) + "\n" for r in (one, other, {**one, "step": 5})))
    found = read_metrics(file)

    assert [("train", "loss"), ("train", "n" * 60), ("eval", "v0")] == [(c.kind, c.name) for c in found.curves][:3]
    assert (40, 3, 2, 0) == (len(found.curves), found.records, found.not_numbers, found.damaged)
    loss = found.curve("train", "loss")
    assert loss and [(3, 2.0), (5, 2.0)] == [(b.first, b.mean) for b in loss.buckets]
    assert found.curve("eval", "loss") is None
    assert Measured() == read_metrics(tmp_path / "none")


def test_scores_are_told_with_their_units() -> None:
    """The last of each; one that there is none of is not told."""
    measured = Measured(
        curves=tuple(a_curve((1, 9.0), (2, v), kind="eval", name=n) for n, v in (("top1", 54.0), ("box_ap", 0.5)))
    )
    assert ["top-1 54 %", "box AP 0.5"] == scores(measured)


def test_checkpoints_and_a_difference_are_told_with_what_is_left(tmp_path: Path) -> None:
    """Megabytes and attempts to the right, the best named; what is left of a difference by its bytes."""
    found = facts.read_facts(made_job(tmp_path, steps=1))
    one = facts.Checkpoint(step=1200, time="t", bytes=102_000_000, attempt=2, is_best=True)
    told = sections.checkpoints(
        dataclasses.replace(found, checkpoints=(one, dataclasses.replace(one, attempt=0, is_best=False)))
    )
    assert [("1,200", "t", "102.0", "2", "best"), ("1,200", "t", "102.0", "", "")] == re.findall(
        r'<th scope="row">(.*?)</th><td>(.*?)</td><td class="n">(.*?)</td><td class="n">(.*?)</td><td>(.*?)</td>',
        told or "",
    )
    assert sections.checkpoints(found) is sections.difference(found) is sections.pictures(found) is None
    assert sections.tail(dataclasses.replace(found, tail=())) is None
    whole = sections.difference(dataclasses.replace(found, difference="+a"))
    assert '<pre class="diff" tabindex="0" aria-label="Difference of the code">+a</pre>' == whole
    part = sections.difference(dataclasses.replace(found, difference="+a", difference_left=1234))
    assert f'{whole}<p class="note">1,234 more bytes: code.diff in the job\'s folder</p>' == (part or "").replace(
        "&#x27;", "'"
    )
    picture = facts.Picture(name="a.png", media="image/png", content="eA==")
    left = sections.pictures(dataclasses.replace(found, pictures=(picture,), pictures_left=2)) or ""
    assert '<img src="data:image/png;base64,eA=="' in left
    assert re.search("2 more pictures in .*/pictures</p>", left)
    assert '"note"' not in (sections.pictures(dataclasses.replace(found, pictures=(picture,))) or "")


@pytest.mark.parametrize("state", list(JobState))
def test_an_outcome_is_a_sentence(tmp_path: Path, state: JobState) -> None:
    """With how long it took in how many attempts, and what of that was useful."""
    job = facts.read_facts(made_job(tmp_path, steps=1)).view
    spent = Spent(useful_s=90.0, start_s=30.0)
    told = outcome(
        dataclasses.replace(
            job, status=dataclasses.replace(job.status, state=state), account=Account(total=spent, attempts=())
        )
    )
    word = "after" if state.is_over else "for"
    assert told.endswith(f", {word} 2m in 2 attempts; 75.0 % of that time was useful (ETTR).")
    bare = outcome(dataclasses.replace(job, status=dataclasses.replace(job.status, state=state), account=None))
    assert told.startswith(bare[:-1])
    assert bare.startswith("It ")
    assert bare.endswith(".")


def test_the_best_checkpoint_is_told_however_old_it_is(tmp_path: Path) -> None:
    """Of the others the twelve newest, the newest first; one that says itself the best is not believed."""
    about = {"time": "2025-10-09T09:00:00Z", "bytes": 5, "is_best": True}
    for step in range(1, 16):
        (tmp_path / f"step-{step:08d}.json").write_text(json.dumps({**about, "step": step, "attempt": 2}))
    (tmp_path / "step-00000017.json").write_text(json.dumps({**about, "step": 17}))
    (tmp_path / "step-00000016.json").write_text("{}")
    (tmp_path / "step-00000018.txt").write_text(json.dumps({**about, "step": 18}))
    (tmp_path / "other.json").write_text(json.dumps({**about, "step": 19}))
    assert not any(c.is_best for c in facts._checkpoints(tmp_path))
    (tmp_path / "best.json").write_text('{"step": 2}')
    found = facts._checkpoints(tmp_path)

    assert [17, *range(15, 4, -1), 2] == [c.step for c in found]
    assert [2] == [c.step for c in found if c.is_best]
    assert not facts.Checkpoint(step=1, time="", bytes=0, attempt=1).is_best
    assert (0, 2) == (found[0].attempt, found[1].attempt)
    assert () == facts._checkpoints(tmp_path / "none")


def test_of_a_difference_and_a_log_a_part_is_shown(tmp_path: Path) -> None:
    """A difference's beginning and how much is left, a log's last twenty lines, each cut; nothing of what is not there."""
    file = tmp_path / "code.diff"
    file.write_bytes(b"x" * 40_000)
    assert ("x" * 40_000, 0) == facts._difference(file)
    file.write_bytes(b"x" * 40_003)
    assert ("x" * 40_000, 3) == facts._difference(file)
    file.write_text("\n".join(["y" * 400, "y" * 401, *map(str, range(18))]))
    assert ("y" * 400, "y" * 400 + "…", *map(str, range(18))) == facts._tail(JobPaths(tmp_path), file)
    file.write_text("\n".join(map(str, range(30))))
    assert tuple(map(str, range(10, 30))) == facts._tail(JobPaths(tmp_path), file)
    file.write_text("z" * (64 << 10) + "\nend\n")
    assert ("z" * 400 + "…", "end") == facts._tail(JobPaths(tmp_path), file)
    assert (("", 0), ()) == (facts._difference(tmp_path / "none"), facts._tail(JobPaths(tmp_path), tmp_path / "none"))


def test_small_pictures_are_shown_by_name(tmp_path: Path) -> None:
    """Eight at most, and so many bytes in all; no link, no hidden file, nothing that is no picture."""
    (tmp_path / "b.png").write_bytes(PNG)
    (tmp_path / "a.jpg").write_bytes(b"\xff\xd8\xff1")
    (tmp_path / "c.png").write_text("<svg/>")
    (tmp_path / "d.png").symlink_to("b.png")
    (tmp_path / "e.png").write_bytes(PNG + bytes(60_001 - len(PNG)))
    (tmp_path / ".f.png").write_bytes(PNG)
    found, left = facts._pictures(tmp_path)
    assert [("a.jpg", "image/jpeg"), ("b.png", "image/png")] == [(p.name, p.media) for p in found]
    assert (PNG, 3) == (base64.b64decode(found[1].content), left)
    for n in range(8):
        (tmp_path / f"g{n}.png").write_bytes(PNG)
    found, left = facts._pictures(tmp_path)
    assert (8, 5) == (len(found), left)
    (tmp_path / "a.jpg").write_bytes(b"\xff\xd8\xff" + bytes(59_997))
    (tmp_path / "b.png").write_bytes(PNG + bytes(50_000 - len(PNG)))
    found, left = facts._pictures(tmp_path)
    assert (["a.jpg", "b.png"], 11) == ([p.name for p in found], left)
    assert ((), 0) == facts._pictures(tmp_path / "none")


def test_a_small_file_s_object_is_read_or_nothing(tmp_path: Path) -> None:
    """A list is none, nor is what is damaged."""
    for said, found in (('{"a": 1}', {"a": 1}), ("[]", {}), ("{", {}), ("[" * 10**5, {})):
        (tmp_path / "f").write_text(said)
        assert found == facts._read_json(tmp_path / "f")
    assert {} == facts._read_json(tmp_path / "none")


def test_what_an_operator_gave_to_variables_is_hidden(tmp_path: Path) -> None:
    """In the job's own list and in mpirun's words; all else stays."""
    job = facts.read_facts(made_job(tmp_path, steps=1)).view.job
    told = dataclasses.replace(
        job, environment={"TOKEN": "geheim"}, mpirun=("mpirun", "-x", "TOKEN=geheim", "-x", "A=b"), notify="/bin/tell"
    )
    hidden = facts.without_secrets(told)
    assert ({"TOKEN": "…"}, ("mpirun", "-x", "TOKEN=…", "-x", "A=b"), "") == (
        hidden.environment, hidden.mpirun, hidden.notify
    )  # fmt: skip
    assert job.command == hidden.command


def test_what_the_memory_has_of_a_host_is_told_but_what_is_forgiven(tmp_path: Path) -> None:
    """The last three; and the newest look at it, with six findings at most and whether it is unfit."""
    paths = made_job(tmp_path, steps=1)
    entries = [Entry(time=1.7e9 + n, host="10.0.1.10", what="host", text=f"lost {n}") for n in range(4)]
    for entry in (*entries, Entry(time=1.7e9 + 5, host="10.0.1.11", what=FORGIVEN)):
        note(tmp_path, entry)
    folder = tmp_path / "health/looks"
    folder.mkdir(parents=True)
    problem = {"check": "c", "what": "w", "unfit": True}
    for name, problems in (("1", []), ("2", [problem] * 7)):
        about = {"uptime": 1.0, "boot": "b", "problems": problems}
        look = {"time": f"2025-10-09T09:0{name}:00+00:00", "rung": "quick", "hosts": {"10.0.1.10": about}}
        (folder / f"{name}.json").write_text(json.dumps(look))
    (folder / "3.json").write_text("{")
    (folder / ".4.json").write_text("{}")
    one, other = hosts_seen(paths, facts.view(paths))

    assert ["lost 1", "lost 2", "lost 3"] == [re.search(r"lost \d", f)[0] for f in one.failures]
    assert (("c: w",) * 6, True, "2025-10-09T09:02:00+00:00") == (one.findings, one.is_unfit, one.looked)
    assert ((), (), False, "") == (other.failures, other.findings, other.is_unfit, other.looked)


def test_ranks_fill_their_hosts_in_order(tmp_path: Path) -> None:
    """In an attempt that is on record those of the record; a host that nobody knows has the usual slots."""
    job = facts.read_facts(made_job(tmp_path, steps=1)).view
    assert {0: "10.0.1.10", 1: "10.0.1.10", 2: "10.0.1.11", 3: "10.0.1.11"} == rank_hosts(job, 1) == rank_hosts(job, 9)
    first = dataclasses.replace(job.attempts[0], hosts=("new", "10.0.1.10"), np=3)
    assert {0: "new", 1: "new", 2: "10.0.1.10"} == rank_hosts(dataclasses.replace(job, attempts=(first,)), 1)
    nobody = dataclasses.replace(job.job, hosts=(), whole_hosts=())
    assert {0: "new"} == rank_hosts(
        dataclasses.replace(job, job=nobody, attempts=(dataclasses.replace(first, hosts=("new",)),)), 1
    )
    assert {"10.0.1.10": ("0-1",), "10.0.1.11": ("2-3",)} == _ranks(dataclasses.replace(job, attempts=()))


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ((), {"command": ""}), (("a", "b"), {"command": "a b"}), (("a", "--x", "--y=1", "--y", "2", "3"), {"command": "a", "--x": "given", "--y": "1 2 3"}),
        (("a", "--x=1", "b"), {"command": "a b", "--x": "1"}), (("a", "--", "b"), {"command": "a -- b"}),
        (("a", "--job-dir", "/x", "--xy", "-1"), {"command": "a", "--xy": "-1"}), (("--a=b=c",), {"command": "", "--a": "b=c"}),
    ],
)  # fmt: skip
def test_flags_have_the_words_that_follow_them(command: tuple[str, ...], flags: dict[str, str]) -> None:
    """Up to the next one; two dashes alone are none, and where its records go is no setting."""
    assert flags == flags_of(command)


def test_outcomes_are_the_last_the_best_and_the_mean(tmp_path: Path) -> None:
    """Each by its curve; what is not known is not told."""
    found = facts.read_facts(made_job(tmp_path, steps=1))
    curves = (
        a_curve((1, 9.0), (2, 54.0), (3, 50.0), kind="eval", name="top1"), a_curve((1, 3.0), (2, 1.0)),
        a_curve((1, 10.0), (2, 30.0), name="images_per_s"),
    )  # fmt: skip
    view = dataclasses.replace(
        found.view, account=Account(total=Spent(useful_s=30.0, start_s=90.0), attempts=()), usd=1234.5
    )
    told = dict(outcomes([dataclasses.replace(found, view=view, measured=Measured(curves=curves))]))
    assert {
        "top-1, last": ("50 %",), "top-1, best": ("54 %",), "loss, last": ("1",), "images/s, mean": ("20",),
        "useful (ETTR)": ("25.0 %",), "time": ("2m",), "attempts": ("2",), "cost, USD": ("1,234.50",), "state": ("succeeded",),
    }.items() <= told.items()  # fmt: skip
    assert "box AP, last" not in told


def test_a_comparison_fits_the_terminal(tmp_path: Path) -> None:
    """A name has 24 characters and a value 16 at least; ids are told without the day that all have in common."""
    found = facts.read_facts(made_job(tmp_path, steps=1))
    other = dataclasses.replace(
        found,
        view=dataclasses.replace(
            found.view, job=dataclasses.replace(found.view.job, id="20251009-x", profile="y" * 50)
        ),
    )
    for width, value in ((10, "y" * 15 + "…"), (100, "y" * 35 + "…"), (200, "y" * 50)):
        rows = differences_text([found, other], width).splitlines()
        (row,) = [r for r in rows if r.startswith("launch profile")]
        assert ("launch profile".ljust(24), value) == (row[:24], row.split()[-1])
    assert ["085320-resnet50-ab12", "x"] == _short(["20251009-085320-resnet50-ab12", "20251009-x"])
    assert (["1-a", "2-a"], ["a", "a"]) == (_short(["1-a", "2-a"]), _short(["1-a", "1-a"]))
    with pytest.raises(ConfigError, match="a is named twice"):
        require_different(["a", "b", "a"])
    require_different(["a", "b"])


def test_how_curves_were_reduced_is_said(tmp_path: Path) -> None:
    """Only where anything was: several steps for a point, values that are none, damaged lines."""
    found = facts.read_facts(made_job(tmp_path, steps=1))
    plain = Measured(curves=(a_curve((1, 3.0), (2, 1.0)),), records=1234)
    (note_,) = _how_reduced(dataclasses.replace(found, measured=plain), Range(low=1, high=2000))
    assert '<p class="note">1234 records of steps 1 to 2,000.</p>' == note_.replace("1,234", "1234")
    wide = Measured(curves=(a_curve((1, 3.0), (2, 1.0), (3, 1.0), most=2),), records=3, not_numbers=1, damaged=2)
    (note_,) = _how_reduced(dataclasses.replace(found, measured=wide), Range(low=1, high=2))
    assert "Each point stands for up to 2 steps" in note_
    assert "1 value that were infinite, or no numbers, are not drawn. 2 damaged lines passed over." in note_


def test_values_of_an_own_program_have_charts_of_their_own() -> None:
    """Four at most, where none is of our trainers' names but a loss."""
    names = ("loss", "epoch", "a", "b", "c", "d", "e")
    own = Measured(curves=tuple(a_curve((1, 1.0), name=n) for n in names))
    assert ["a (train)", "b (train)", "c (train)", "d (train)"] == [title for title, _ in _further(own)]
    assert [] == _further(Measured(curves=(*own.curves, a_curve((1, 1.0), name="lr"))))


def test_many_records_far_apart_have_few_columns() -> None:
    """Columns become wider until there are not too many of them, nor too long a time."""
    for last, width in ((7.0, 1.0), (8.0, 2.0), (16.0, 4.0)):
        buckets = RankBuckets(most=2)
        for at in (0.0, last):
            buckets.add({"time": at, "rank_input_s": [0.0], "rank_compute_s": [1.0]})
        found = buckets.rank_map()
        assert found and (width, 1 + int(last / width)) == (found.column_s, found.columns)


@pytest.mark.parametrize("job_id", ["../../.bashrc", "/etc/cron.d/x", "a/b", "", ".hidden", "-rf", "a\n", "x" * 300])
def test_a_page_s_file_is_in_the_folder_one_stands_in(job_id: str) -> None:
    """Whatever id the master says."""
    with pytest.raises(ConfigError, match="job id"):
        file_name(job_id)
    assert "20261120-a.html" == file_name("20261120-a")
