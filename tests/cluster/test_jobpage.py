"""A job on one page: honest curves, stragglers named, nothing of the job's is markup, nothing asks a network."""

import base64
import dataclasses
import hashlib
import html.parser
import io
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.errors import ConfigError
from cluster.files import write_json
from cluster.jobs.client import show
from cluster.jobs.curves.curves import MOST_BUCKETS, CurveBuckets
from cluster.jobs.curves.metrics import read_metrics
from cluster.jobs.curves.rank_map import stragglers
from cluster.jobs.master.facts import JobFacts, read_facts
from cluster.jobs.record import JobPaths
from cluster.jobs.state import JobState
from cluster.recovery.failure_kinds import FailureKind
from cluster.report.chart import ticks
from cluster.report.compare import compared, differences_text, record, require_different
from cluster.report.heat import COLOURS, picture
from cluster.report.page import MOST_BYTES, page
from cluster.report.settings import settings
from cluster.typed import from_json
from tests.cluster.browser import browser
from tests.cluster.flat_jobs import changed
from tests.cluster.made_job import PNG, SLOW_RANK, made_job, write_metrics

HOSTILE = """</script></style></pre><script>alert(1)</script><img src=https://e.vil/x onerror=alert(1)>"' &amp; \u202e\x1b[31m"""
VOID = {"meta", "img", "br", "rect", "line", "path"}


class Read(html.parser.HTMLParser):
    """A page as a browser takes it apart: its elements with their attributes, their text, what is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text, self.script, self.style = "", "", ""
        self._open: list[str] = []
        self.feed(text)
        assert [] == self._open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert tag == self._open.pop(), tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] in ("script", "style"):
            setattr(self, self._open[-1], getattr(self, self._open[-1]) + data)
        else:
            self.text += data

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture
def job(tmp_path: Path) -> JobPaths:
    """A job of two attempts with all that a page shows."""
    paths = made_job(tmp_path, steps=1200)
    write_metrics(paths, 1200)
    (paths.folder / "pictures").mkdir()
    (paths.folder / "pictures/street.png").write_bytes(PNG)
    (paths.folder / "code.diff").write_text("--- a/train.py\n+++ b/train.py\n-lr = 1\n+lr = 2\n")
    write_json(paths.checkpoints / "best.json", {"step": 1080, "score": 54.0})
    for step in (600, 1080, 1200):
        facts = {"step": step, "time": "2025-10-09T09:00:00Z", "sha256": "0" * 64, "bytes": 102_000_000, "attempt": 2}
        write_json(paths.checkpoints / f"step-{step:08d}.json", facts)
    return paths


@given(st.lists(st.tuples(st.integers(0, 10**6), st.floats(-1e9, 1e9)), min_size=1, max_size=300), st.integers(1, 20))
def test_a_curve_s_buckets_hide_no_value(values: list[tuple[int, float]], most: int) -> None:
    """Each value is between the least and the largest of a bucket that has its step, and is counted once."""
    buckets = CurveBuckets(most=most)
    for step, value in values:
        buckets.add(step, value)
    curve = buckets.curve("train", "loss")

    assert len(curve.buckets) <= most
    assert len(values) == sum(b.count for b in curve.buckets)
    assert (min(v for _, v in values), max(v for _, v in values)) == (curve.lowest.least, curve.highest.largest)
    for step, value in values:
        assert any(b.first <= step <= b.last and b.least <= value <= b.largest for b in curve.buckets)
    assert all(b.least <= b.mean <= b.largest for b in curve.buckets)


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.integers(2, 8))
def test_an_axis_has_a_few_round_numbers_within_it(low: float, width: float, most: int) -> None:
    """Never none where there is room, never many."""
    found = ticks(low, low + width, most)

    assert len(found) <= most + 1
    assert all(low - width * 0.01 <= t <= low + width * 1.01 for t in found)


def test_the_straggler_is_named_with_its_host_and_drawn(job: JobPaths) -> None:
    """Rank 2 took twice as long as the others in the second half."""
    pillow = pytest.importorskip("PIL.Image")
    ranks = read_metrics(job.metrics).ranks
    found = stragglers(ranks)

    assert [SLOW_RANK] == [s.rank for s in found]
    assert 0.4 < found[0].slow < 0.6
    image = pillow.open(io.BytesIO(base64.b64decode(picture(ranks).partition(",")[2]))).convert("RGB")
    assert (ranks.columns, 4) == image.size
    colours = [[image.getpixel((x, y)) for x in (2, ranks.columns - 2)] for y in range(4)]
    plain, slow = (tuple(bytes.fromhex(COLOURS[n][1][1:])) for n in (3, 6))
    assert [[plain, plain], [plain, plain], [plain, slow], [plain, plain]] == colours
    shown = page(read_facts(job))
    assert re.search(r'scope="row">2</th><td>10\.0\.1\.11</td>', shown)


def test_damaged_lines_and_what_is_no_number_are_counted_and_in_no_curve(tmp_path: Path) -> None:
    """Whatever stands in the file."""
    file = tmp_path / "metrics.jsonl"
    good = {"kind": "train", "step": 1, "time": 1.0, "loss": 2.0, "huge": 10**400, "top1": True}
    lines = [
        json.dumps(good), json.dumps({**good, "step": 2, "loss": float("nan")}), "[" * 100_000, "null", "{}", "x" * 3_000_000,
        json.dumps({**good, "step": -1}), json.dumps({**good, "time": "soon"}), json.dumps({**good, "step": 3, "time": 1e300}),
        json.dumps({**good, "rank_input_s": [1, "x"], "rank_compute_s": [float("inf"), None]}),
    ]  # fmt: skip
    file.write_text("\n".join(lines) + '\n{"kind": "train", "st')
    found = read_metrics(file)

    assert ["loss"] == [c.name for c in found.curves]
    assert (3, 4, 7) == (found.records, found.not_numbers, found.damaged)
    assert found.ranks is None


def lines_of_many(paths: JobPaths, steps: int, ranks: int) -> None:
    """As many steps, all values rough."""
    names = ("loss", "top1", "lr", "images_per_s", "input_s", "compute_s", "reduce_s")
    rough = []
    for n in range(997):
        noise = n * 2_654_435_761 % 1_000_003
        own = [(noise * (r + 1)) % 9973 / 9973 + 0.1 for r in range(ranks)]
        values = {name: (noise * m) % 7919 / 977 for m, name in enumerate(names, start=3)}
        rough.append(json.dumps({**values, "rank_input_s": own, "rank_compute_s": own})[1:])
    with paths.metrics.open("w") as file:
        file.writelines(
            f'{{"kind": "train", "step": {n}, "time": {1_760_000_000 + n}, {rough[n % 997]}\n' for n in range(steps)
        )


@pytest.mark.seconds
def test_a_hundred_thousand_steps_fit_on_a_page(tmp_path: Path) -> None:
    """With ten attempts, 8 ranks, all values rough, a large difference, pictures, and lines of 10 MB in its log."""
    paths = made_job(tmp_path, steps=100_000, attempts=10)
    lines_of_many(paths, 100_000, 8)
    (paths.folder / "code.diff").write_text("+" + "x" * 3_000_000)
    (paths.folder / "pictures").mkdir()
    for n in range(12):
        (paths.folder / f"pictures/{n}.png").write_bytes(PNG + bytes(20_000))
    (paths.folder / "pictures/large.png").write_bytes(PNG + bytes(3_000_000))
    with paths.console(10).open("a") as console:
        console.write(("y" * 10_000_000 + "\n") * 2 + "the end\n")
    found = read_facts(paths)
    made = page(from_json(JobFacts, json.loads(json.dumps(dataclasses.asdict(found)))))

    assert len(made.encode()) <= MOST_BYTES
    assert all(len(c.buckets) <= MOST_BUCKETS for c in found.measured.curves)
    assert 100_000 == found.measured.records
    assert "Each point stands for up to 256 steps" in made
    text = Read(made).text
    assert 10 == len(re.findall(r"4 on 10\.0\.1\.\[10-11\]", text)) - text.count("ranks4 on")
    assert "the end" in text
    assert 8 >= len(found.pictures) > 0


def hostile(paths: JobPaths) -> JobFacts:
    """A job that says HOSTILE wherever it may say something."""
    (paths.folder / "code.diff").write_text(HOSTILE)
    paths.console(2).write_text(HOSTILE)
    with paths.metrics.open("a") as file:
        file.write(json.dumps({"kind": HOSTILE, "step": 5, "time": 1.76e9, HOSTILE: 1.0}) + "\n")
    found = read_facts(paths)
    job, status = found.view.job, found.view.status
    record_ = dataclasses.replace(
        found.view.attempts[0], text=HOSTILE, then=HOSTILE, what=FailureKind.HOST, hosts=(HOSTILE,)
    )
    view = dataclasses.replace(
        found.view,
        job=changed(
            job, command=(HOSTILE, f"--{HOSTILE}", "x"), mpirun=("mpirun", HOSTILE), revision=HOSTILE,
            versions={HOSTILE: HOSTILE}, environment={HOSTILE: "…"}, profile=HOSTILE, created=HOSTILE,
        ),
        status=dataclasses.replace(status, state=JobState.FAILED, cause=HOSTILE, left=(HOSTILE,), warnings=(HOSTILE,)),
        attempts=(record_, *found.view.attempts[1:]), owner=HOSTILE, folder=HOSTILE,
    )  # fmt: skip
    host = dataclasses.replace(
        found.hosts[0], address=HOSTILE, findings=(HOSTILE,), failures=(HOSTILE,), looked=HOSTILE
    )
    pictures = tuple(dataclasses.replace(p, name=HOSTILE) for p in found.pictures)
    point = dataclasses.replace(found.checkpoints[0], time=HOSTILE)
    return dataclasses.replace(found, view=view, hosts=(host,), pictures=pictures, checkpoints=(point,), made=HOSTILE)


@pytest.mark.parametrize("make", [page, lambda found: compared([found, found])])
def test_nothing_that_a_job_says_is_markup(job: JobPaths, make: Any) -> None:
    """Every element is ours, no attribute is a program, nothing names an address; the one script is the one allowed."""
    plain, bad = Read(make(read_facts(job))), Read(make(hostile(job)))

    assert {name for name, _ in plain.elements} == {name for name, _ in bad.elements}
    assert {a for _, given in plain.elements for a in given} >= {a for _, given in bad.elements for a in given}
    assert 1 == len(bad.all("script"))
    assert (plain.script, plain.style) == (bad.script, bad.style)
    addresses = [v for _, given in bad.elements for a, v in given.items() if a in ("src", "href", "action", "srcset")]
    assert all(a.startswith(("data:image/png;base64,", "#")) for a in addresses)
    assert not [a for _, given in bad.elements for a in given if a.startswith("on")]
    seen = HOSTILE.replace("\u202e", "\ufffd").replace("\x1b", "\ufffd")
    assert bad.text.count(seen) >= 3
    assert "\u202e" not in bad.text


def test_the_page_allows_its_own_script_and_nothing_else(job: JobPaths) -> None:
    """By the hash of the script that is in it."""
    read = Read(page(read_facts(job)))
    policy = next(m["content"] for m in read.all("meta") if m.get("http-equiv") == "Content-Security-Policy")
    own = base64.b64encode(hashlib.sha256(read.script.encode()).digest()).decode()

    assert (
        f"default-src 'none'; script-src 'sha256-{own}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    ) == policy
    assert "url(" not in read.style
    assert "@import" not in read.style


def test_the_page_is_for_who_cannot_see_it_too(job: JobPaths) -> None:
    """Headings in order, tables with captions and heads, every picture in words, every id once."""
    made = page(read_facts(job))
    read = Read(made)
    levels = [int(name[1]) for name, _ in read.elements if re.fullmatch(r"h\d", name)]

    assert [1] == [n for n in levels if n == 1]
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert all(i["alt"] for i in read.all("img"))
    assert all(s["aria-label"] for s in read.all("svg") if s.get("role") == "img")
    assert len(read.all("table")) == made.count("<table><caption>") >= 8
    assert all(th["scope"] in ("row", "col") for th in read.all("th"))
    ids = [given["id"] for _, given in read.elements if "id" in given]
    assert len(ids) == len(set(ids))
    assert {"en"} == {one["lang"] for one in read.all("html")}
    for words in ("It succeeded, after 11m in 2 attempts", "host 10.0.1.11 was lost in mid-run", "top-1 54 %", "102.0"):
        assert words in read.text, words


def part(made: str, anchor: str) -> str:
    """Of a page, the markup of one part; "" where there is none."""
    found = re.search(rf'<section id="{anchor}".*?</section>', made, re.DOTALL)
    return found[0] if found else ""


PARTS = {
    "attempts": "host 10.0.1.11 was lost in mid-run",
    "curves": "Learning rate",
    "ranks": "Slow at times: rank 2.",
    "hosts": "10.0.1.11",
    "pictures": "street.png",
    "checkpoints": "1,080",
    "command": "python -m trainer.resnet50 --lr 0.1",
    "difference": "+lr = 2",
    "log": "Finished in 3600 s",
}


def test_every_part_is_there_in_its_order_and_says_what_it_is_of(job: JobPaths) -> None:
    """A list at the top leads to each."""
    read = Read(made := page(read_facts(job)))

    assert list(PARTS) == [given["id"] for name, given in read.elements if name == "section"]
    assert [f"#{anchor}" for anchor in PARTS] == [a["href"] for a in read.all("a")]
    assert {} == {anchor: word for anchor, word in PARTS.items() if word not in Read(part(made, anchor)).text}


def test_no_value_of_a_variable_that_was_given_is_on_the_page(job: JobPaths) -> None:
    """Nor in what the master answers, nor whom it tells."""
    found = read_facts(job)

    assert "hunter2" in job.job.read_text()
    assert "hunter2" not in json.dumps(found.to_json())
    assert "TOKEN=…" in Read(page(found)).text


def test_compare_names_what_differs_and_only_that(tmp_path: Path) -> None:
    """Flags by their names, versions, and what came of them."""
    command = ("python", "-m", "trainer.resnet50", "--lr", "0.2", "--job-dir", "elsewhere", "--synthetic")
    versions = {"python": "3.11.2", "open mpi": "4.1.6"}
    one = made_job(tmp_path, steps=100)
    two = made_job(tmp_path, name="20251009-085321-resnet50-ef56", steps=100, command=command, versions=versions)
    write_metrics(one, 100)
    write_metrics(two, 50)
    found = [read_facts(one), read_facts(two)]

    assert {
        "--lr": ("0.1", "0.2"), "--synthetic": ("", "given"), "open mpi": ("4.1.4", "4.1.6"),
    } == dict(settings(found))  # fmt: skip
    lines = differences_text(found, 100).splitlines()
    assert ["085320-resnet50-ab12", "085321-resnet50-ef56"] == lines[0].split()
    assert any(re.fullmatch(r"--lr +0\.1 +0\.2", line) for line in lines)
    assert ["100", "50"] == record(found)["outcomes"]["step"]
    read = Read(compared(found))
    assert all(title in read.text for title in ("Loss, training", "Learning rate", "Settings that differ"))
    with pytest.raises(ConfigError, match="named twice"):
        require_different(["a", "b", "a"])


def test_compare_tells_programs_by_their_own_code(tmp_path: Path) -> None:
    """Commit and content, from the folder of each; the project that launched them has a row of its own."""
    folders = []
    for n, revision in enumerate(("aaaaaaaaaaaa", "bbbbbbbbbbbb+changes")):
        program = {"program": True, "code": f"digest{n}", "command": ("python", "train.py"), "revision": "unknown"}
        paths = made_job(tmp_path, name=f"20251009-08532{n}-train-ab12", steps=100, **program)
        content = str(n) * 40
        write_json(paths.folder / "code.json", {"revision": revision, "content": content, "root": "/home/me/mine"})
        folders.append(paths)
    found = [read_facts(paths) for paths in folders]

    codes = ("aaaaaaaaaaaa, content 000000000000", "bbbbbbbbbbbb+changes, content 111111111111")
    assert {"code": codes} == dict(settings(found))
    assert found[1] == from_json(JobFacts, json.loads(json.dumps(dataclasses.asdict(found[1]))))
    for text in (Read(page(found[1])).text, show.one(found[1].view)):
        assert codes[1] in text
        assert "dlami-cluster unknown" in text


@pytest.mark.seconds
def test_a_browser_opens_it_without_a_request_and_zooms(job: JobPaths, tmp_path: Path) -> None:
    """Chromium: nothing but the file is asked for, nothing complains; a drag and keys zoom all charts; fits a phone."""
    file = tmp_path / "page.html"
    file.write_text(page(read_facts(job)))
    with browser() as tab:
        tab.open(file)
        assert tab.value("document.getElementById('tools').hidden") is False
        tab.value("document.querySelector('figure.chart svg').scrollIntoView({block: 'center'})")
        box = tab.value("JSON.stringify(document.querySelector('figure.chart svg').getBoundingClientRect())")
        at = json.loads(box)
        middle = at["y"] + at["height"] / 2
        tab.drag((at["x"] + 0.3 * at["width"], middle), (at["x"] + 0.6 * at["width"], middle))
        said = tab.value("document.getElementById('zoomed').textContent")
        views = tab.value(
            "[...new Set([...document.querySelectorAll('svg.plot')].map(s => s.viewBox.baseVal.x))].length"
        )
        readout = tab.value("document.querySelector('figure.chart output').textContent")
        tab.value("document.querySelector('figure.chart svg').focus()")
        tab.press("Escape")
        whole = tab.value("document.getElementById('zoomed').textContent")
        tab.press("+")
        nearer = tab.value("document.getElementById('zoomed').textContent")
        tree = tab.ask("Accessibility.getFullAXTree")["nodes"]
        printed = tab.ask("Page.printToPDF")["data"]
        tab.open(file, width=360, dark=True)
        wide = tab.value("document.documentElement.scrollWidth")
        paper = tab.value("getComputedStyle(document.body).backgroundColor")

    assert [file.as_uri()] * 2 == [r for r in tab.requests if not r.startswith("data:")]
    assert [] == tab.complaints
    low, high = (int(n.replace(",", "")) for n in re.findall(r"[\d,]+", said))
    assert (270 < low < 330, 630 < high < 720) == (True, True), said
    assert 1 == views
    assert re.match(r"training [\d.]+ at step \d+; validation [\d.]+ at step \d+", readout)
    assert ("all steps", True) == (whole, nearer.startswith("steps "))
    roles = [(n["role"]["value"], n.get("name", {}).get("value")) for n in tree if not n["ignored"]]
    assert all(name for role, name in roles if role in ("image", "img", "table", "button", "heading", "region"))
    assert base64.b64decode(printed).startswith(b"%PDF")
    assert wide <= 360
    assert "rgb(15, 20, 24)" == paper
