"""Every task that looks, used on 4 and 64 lab hosts while a training runs on two of them: how long each takes, and what
listens meanwhile; with `--pictures` TensorBoard and a notebook as a browser shows them, for the docs.

    PYTHONPATH=. python benchmarks/eyes_used.py                         # as root: it makes labs of its own
    PYTHONPATH=. python benchmarks/eyes_used.py --sizes --pictures      # docs/tensorboard.png, docs/jupyter.png

Whole processes, from the command to its end; of a page from the command to its first answer with 200. The rows are kept
with those of `inv top` in results/eyes.json. `make jupyter` has to have installed JupyterLab once.
"""

import argparse
import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cluster.inventory import ROOT, Cluster
from cluster.ssh.fanout import Executor
from cluster.tunnels import jupyter_packages
from tests.cluster.browser import Browser, browser

sys.path.insert(0, str(Path(__file__).parent))
from eyes import environment, inv, timed, training_lab
from rounds import RESULTS, Runs, row, write

PAGE_S = 5.0  # from the command to the first 200
LISTENING = "ss -Htln | awk '{print $4}' | grep -v '^127[.]\\|^\\[::1\\]\\|:22$' | sort -u"
WIDTH, HEIGHT = 1300, 700
LOADS_S = 300.0


def main() -> None:
    """Measure, and keep the rows beside the others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=[4, 64])
    parser.add_argument("--pictures", action="store_true", help="those for the docs, too")
    parser.add_argument("--times", type=int, default=3, help="each is done so often")
    asked = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # `&` of a shell has it ignored, for its children too
    for size in asked.sizes:
        with training_lab(size) as (_, cluster), Executor(cluster) as reach:
            have_jupyter(cluster, reach)
            rows = used(cluster, reach, size, asked.times)
            kept = json.loads((RESULTS / "eyes.json").read_text())
            new = {r["what"] for r in rows}
            write("eyes", [*(r for r in kept if r["what"] not in new), *rows])
    if asked.pictures:
        with training_lab(2) as (_, cluster), Executor(cluster) as reach:
            have_jupyter(cluster, reach)
            take_pictures()


def have_jupyter(cluster: Cluster, reach: Executor) -> None:
    """The master has JupyterLab as `inv jupyter` would have installed it there."""
    os.environ["XDG_DATA_HOME"] = str(ROOT / ".jupyter")
    installed = jupyter_packages.python()
    if installed is None:
        raise SystemExit("JupyterLab is not installed: 'make jupyter' gets it")
    folder = installed.parent.parent
    link = f"mkdir -p ~/.local/share/dlami && ln -sfn {folder} ~/.local/share/dlami/{folder.name}"
    reach.run([cluster.master], link).check()


def used(cluster: Cluster, reach: Executor, size: int, times: int) -> list[dict[str, Any]]:
    """The rows of so many hosts."""
    before = others_listen(cluster, reach)
    runs: Runs = {"limit 5 s": [PAGE_S]}
    with tempfile.TemporaryDirectory() as folder:
        tasks = {
            "jobs.list": ["jobs.list"],
            "jobs.report": ["jobs.report", "--out", f"{folder}/job.html"],
            "jobs.watch --once": ["jobs.watch", "--once"],
            "jobs.logs --errors": ["jobs.logs", "last", "--errors"],
            "metrics": ["metrics"],
        }
        for name, words in tasks.items():
            runs[name] = [timed(inv(*words)) for _ in range(times)]
    most = 0
    for kind in ("tensorboard", "jupyter"):
        runs[kind] = []
        for _ in range(times):
            began = time.perf_counter()
            with page(kind) as url:
                fetch(url)
                runs[kind].append(time.perf_counter() - began)
                most = max(most, len(others_listen(cluster, reach) - before))
    left = len(others_listen(cluster, reach) - before)

    def line(name: str, against: str = "") -> dict[str, Any]:
        what = f"{size} hosts, a training on two: inv {name}"
        label = f"{what}, to the first 200" if against else f"{what}, whole process"
        return row(runs, name, against, 1.0 if against else None, label=label)

    ports: Runs = {"most": [float(most)], "left": [float(left)], "load": [os.getloadavg()[0] / (os.cpu_count() or 1)]}
    text = f"{size} hosts, a training on two"
    return [
        *(line(name) for name in tasks),
        *(line(name, "limit 5 s") for name in ("tensorboard", "jupyter")),
        row(ports, "most", label=f"{text}: sockets but on loopback while a page is served", unit="sockets"),
        row(ports, "left", label=f"{text}: and afterwards", unit="sockets"),
        row(ports, "load", label=f"{text}: load per core of this machine meanwhile", unit=""),
    ]


def others_listen(cluster: Cluster, reach: Executor) -> set[tuple[str, str]]:
    """Where anything listens but on loopback, and but for sshd, the training too: host, address."""
    found = reach.run(cluster.hosts, LISTENING).check()
    return {(h.address, line) for h, r in found.items() for line in r.text.split()}


@contextlib.contextmanager
def page(*words: str) -> Iterator[str]:
    """The address of a page, as long as its task runs; Ctrl-C ends it."""
    task = subprocess.Popen(
        inv(*words, "--json", "--no-browser"), stdout=subprocess.PIPE, text=True, env=environment(), cwd=ROOT
    )
    try:
        assert task.stdout
        yield str(json.loads(task.stdout.readline())["url"])
    finally:
        task.send_signal(signal.SIGINT)
        try:
            task.wait(60)
        finally:
            task.kill()


def fetch(url: str) -> None:
    """Raises HTTPError for what is not 200."""
    with urllib.request.urlopen(url, timeout=60) as got:
        got.read()


def take_pictures() -> None:
    """TensorBoard and a notebook through a tunnel, as Chromium shows them."""
    with page("tensorboard") as url, browser() as shown:
        tags = "train%2F%28loss%7Cimages_per_s%29%24"
        look_at(shown, f"{url}?tagFilter={tags}#timeseries", "document.querySelectorAll('scalar-card').length > 1")
        keep(shown, ROOT / "docs/tensorboard.png")
    with page("jupyter") as url, browser() as shown:
        root, _, token = url.partition("/lab?")
        look_at(shown, f"{root}/lab/tree/watch.ipynb?{token}", "document.querySelectorAll('.jp-Cell').length > 1")
        wait_until(shown, "document.body.innerText.includes('| Idle')")
        shown.ask("Runtime.evaluate", expression="document.querySelector('.jp-Notebook .cm-content').focus()")
        for _ in range(4):
            for kind in ("rawKeyDown", "keyUp"):
                shown.ask(
                    "Input.dispatchKeyEvent",
                    type=kind,
                    key="Enter",
                    code="Enter",
                    modifiers=8,
                    windowsVirtualKeyCode=13,
                )
            time.sleep(0.5)
        wait_until(shown, "document.querySelectorAll('.jp-OutputArea img').length > 0")
        shown.value(
            "[...document.querySelectorAll('.jp-toast-button')].at(-1)?.click()"
        )  # it asks whether there is news
        keep(shown, ROOT / "docs/jupyter.png")


def look_at(shown: Browser, url: str, is_there: str) -> None:
    """Open an address, and wait until what is wanted is on the page."""
    shown.ask("Emulation.setDeviceMetricsOverride", width=WIDTH, height=HEIGHT, deviceScaleFactor=1, mobile=False)
    shown.ask("Page.navigate", url=url)
    wait_until(shown, is_there)


def wait_until(shown: Browser, is_there: str) -> None:
    """Raises RuntimeError with what is on the page instead."""
    deadline = time.monotonic() + LOADS_S
    while not shown.value(is_there):
        if time.monotonic() > deadline:
            keep(shown, Path(tempfile.gettempdir()) / "eyes-page.png")
            raise RuntimeError(f"not on the page: {is_there}; {str(shown.value('document.body.innerText'))[:500]}")
        time.sleep(0.2)


def keep(shown: Browser, path: Path) -> None:
    """What the page looks like once its charts have been drawn, in the colours that it has."""
    import io

    from PIL import Image

    time.sleep(3.0)
    picture = Image.open(io.BytesIO(base64.b64decode(shown.ask("Page.captureScreenshot")["data"])))
    picture.convert("RGB").quantize(128).save(path, optimize=True)


if __name__ == "__main__":
    main()
