"""Pages that the master serves: TensorBoard as its user finds it, what others see of it, and that nothing is left."""

import http.client
import json
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import ClusterError
from cluster.inventory import Cluster
from cluster.jobs.record import jobs_folder
from cluster.kill.kill import KnownJobs, find_leftovers
from cluster.ssh import connections
from cluster.ssh.fanout import Executor
from cluster.tunnels import client
from cluster.tunnels.events import Runs
from cluster.tunnels.local_port import join
from cluster.tunnels.service import ServiceRequest
from lab.record import Lab
from tests.cluster.pages import fetched, listening, tensorboard
from tests.cluster.records import on_record
from tests.conftest import PATIENCE_S, Inv, wait_for

NOBODY = "setpriv --reuid 65534 --regid 65534 --clear-groups"


def record(step: int, **values: Any) -> str:
    return json.dumps({"kind": "train", "step": step, "time": 1000.0 + step, **values}) + "\n"


@pytest.fixture
def job(lab: Lab) -> Iterator[str]:
    """A job on the lab's shared folder that writes numbers and no events."""
    folder = jobs_folder(str(lab.shared))
    folder.mkdir(exist_ok=True, mode=0o777)
    name = f"20261123-000000-tunnels-{os.getpid() % 10000:04}"
    paths = on_record(folder, name)
    paths.metrics.write_text("".join(record(step, loss=5.0 - step) for step in range(3)))
    yield name
    subprocess.run(["rm", "-r", str(paths.folder)], check=True)


def answers(url: str) -> bool:
    """Whether the page is there now."""
    try:
        return bool(fetched(url)[0] == 200)
    except (OSError, http.client.HTTPException):
        return False


@pytest.mark.promise("pages")
def test_tensorboard_from_the_command_to_its_end(lab: Lab, cluster: Cluster, reach: Executor, job: str) -> None:
    """Its page answers who knows the secret; loopback only; no list of processes has the secret; nothing is left.

    Another page beside it has a port, a secret and an end of its own.
    """
    services = client.Services(reach, cluster)
    others = {one.id for one in services.list()}
    before = listening(reach, cluster)
    with tensorboard(lab, job) as (task, said):
        status, page = fetched(said["url"])
        assert (200, True) == (status, b"TensorBoard" in page)
        wait_for(lambda: json.loads(fetched(said["url"] + "data/runs")[1]) == [job], 60, "its run is shown")
        root, secret = said["url"].rsplit("/", 2)[:2]
        with pytest.raises(urllib.error.HTTPError, match="404"):
            fetched(root + "/")
        on_hosts = {address for found in listening(reach, cluster).values() for address in found}
        assert all(address.startswith("127.0.0.1:") for address in on_hosts)
        assert root.startswith("http://127.0.0.1:")
        seen = reach.run([cluster.master], f"{NOBODY} ps -eo args; {NOBODY} cat /proc/*/environ 2>/dev/null; true")
        here = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
        assert "cluster.tunnels.service_process" in seen[cluster.master].text
        assert secret not in seen[cluster.master].text + here
        own = reach.run([cluster.master], f"{NOBODY} ls /var/tmp/dlami-tunnels-0")[cluster.master]
        assert not own.ok
        loaded = "cat /proc/$(pgrep -f cluster.tunnels.service_process | head -1)/maps"
        assert "libtensorflow" not in reach.run([cluster.master], loaded).check()[cluster.master].text  # seconds
        connections.disconnect()
        wait_for(lambda: answers(said["url"]), 120, "the page is back where it was, over a new connection")
        second = services.start(ServiceRequest(kind="tensorboard", shared=cluster.shared, job="all"))
        assert {said["id"], second.id} == {one.id for one in services.list()} - others
        wait_for(lambda: any(one.attended for one in services.list() if one.id == said["id"]), 120, "who looks is seen")
        assert (second.port, second.path) != (int(root.rpartition(":")[2]), f"/{secret}/")
        found = find_leftovers(reach, cluster, [cluster.master], KnownJobs(going=(), over=()))
        assert "another inv's" in {p.fate for p in found.processes[cluster.master] if p.page == said["id"]}
        task.send_signal(signal.SIGINT)
        task.wait(PATIENCE_S)
        assert task.stderr
        assert "nothing of it is left" in task.stderr.read()
        assert (second.id,) == services.end(second.id)

    assert not any(now - before[host] for host, now in listening(reach, cluster).items())
    left = reach.run([cluster.master], "ls -A /var/tmp/dlami-tunnels-0; ps -eo args | grep '[c]luster.tunnels'; true")
    assert [] == [name for name in (said["id"], second.id) if name in left[cluster.master].text]


def test_what_fails_here_leaves_nothing_there(cluster: Cluster, reach: Executor) -> None:
    """A page that cannot be shown is ended on the master as after Ctrl-C; it is there before any job was."""

    def fail(page: client.Looking) -> None:
        raise ClusterError(f"no way to show {page.url}")

    before = {one.id for one in client.Services(reach, cluster).list()}
    with pytest.raises(ClusterError, match="no way to show"):
        client.look_at(cluster, ServiceRequest(kind="tensorboard", shared=cluster.shared, job="all"), fail)
    assert set() == {one.id for one in client.Services(reach, cluster).list()} - before


def test_a_page_whose_user_went_without_a_word_is_shown_and_ended_by_kill(
    lab: Lab, cluster: Cluster, reach: Executor, inv: Inv, job: str
) -> None:
    """And what was ended on the master ends the task here, with a sentence."""
    with tensorboard(lab, "all") as (task, said):
        task.kill()
        task.wait()

    def is_alone() -> bool:
        """Its last request may still come in and be noted; then it is made old once more."""
        reach.run([cluster.master], f"touch -d '5 minutes ago' /var/tmp/dlami-tunnels-0/{said['id']}/seen").check()
        time.sleep(1)
        return not any(one.attended for one in client.Services(reach, cluster).list() if one.id == said["id"])

    wait_for(is_alone, 120, "nobody looks at it")
    done = inv("kill", "--yes")
    assert said["id"] in done.stdout
    assert said["id"] not in {one.id for one in client.Services(reach, cluster).list()}
    with tensorboard(lab, job) as (task, said):
        assert f"{said['id']}: ended" in inv("tunnels", said["id"], "--end").stdout
        task.wait(PATIENCE_S)
        assert 1 == task.returncode
        assert task.stderr
        assert "was ended on the master" in task.stderr.read()


def test_a_job_that_is_not_there_is_refused(lab: Lab, inv: Inv) -> None:
    """Before anything is started, in a sentence."""
    done = inv("tensorboard", "no-such-job")

    assert 2 == done.returncode
    assert "no-such-job" in done.stderr and "Traceback" not in done.stderr


def scalars_of(folder: Path) -> dict[int, dict[str, float]]:
    """What TensorBoard reads there: by step, the values under their tags."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder))
    read.Reload()
    found: dict[int, dict[str, float]] = {}
    for tag in read.Tags()["scalars"]:
        for one in read.Scalars(tag):
            found.setdefault(one.step, {})[tag] = one.value
    return found


@pytest.mark.seconds
def test_events_are_made_of_metrics_where_a_job_writes_none(tmp_path: Path) -> None:
    """As they come, whole lines only; what a resume has written anew replaces what was read before."""
    shared, folder = tmp_path / "shared", tmp_path / "runs"
    paths = on_record(jobs_folder(str(shared)), "one")
    paths.metrics.write_text(record(0, loss=4.0, rank_ms=[1.0, 3.0]) + record(1, loss=3.0)[:-9])
    runs = Runs(ServiceRequest(kind="tensorboard", shared=str(shared), job="all"), folder)
    runs.refresh()
    assert {0: {"train/loss": 4.0, "train/rank_ms/least": 1.0, "train/rank_ms/largest": 3.0}} == scalars_of(
        folder / "one"
    )

    anew = paths.folder / "anew"
    anew.write_text(record(0, loss=4.0) + "no JSON\n" + record(1, loss=2.0))
    anew.replace(paths.metrics)
    on_record(jobs_folder(str(shared)), "two").metrics.write_text(record(7, loss=1.0))
    runs.refresh()

    assert {0: {"train/loss": 4.0}, 1: {"train/loss": 2.0}} == scalars_of(folder / "one")
    assert {7: {"train/loss": 1.0}} == scalars_of(folder / "two")


def test_a_job_s_own_events_are_shown_and_none_made(tmp_path: Path) -> None:
    """A link to its folder."""
    paths = on_record(jobs_folder(str(tmp_path)), "one")
    (paths.folder / "tensorboard").mkdir()
    (paths.folder / "tensorboard/events.out.tfevents.1.host").touch()
    paths.metrics.write_text(record(0, loss=4.0))
    runs = Runs(ServiceRequest(kind="tensorboard", shared=str(tmp_path), job="one"), tmp_path / "runs")
    runs.refresh()

    assert paths.folder / "tensorboard" == (tmp_path / "runs/one").readlink()


def test_both_ways_are_passed_on_until_both_have_ended() -> None:
    """What one side says after the other has said all comes through."""
    (browser, here), (there, page) = socket.socketpair(), socket.socketpair()
    passing = threading.Thread(target=join, args=(here, there))
    passing.start()
    browser.sendall(b"a question")
    browser.shutdown(socket.SHUT_WR)
    asked = page.makefile("rb").read()
    page.sendall(b"answer" * 1000)
    page.close()

    assert b"a question" == asked
    assert b"answer" * 1000 == browser.makefile("rb").read()
    passing.join(PATIENCE_S)
    assert not passing.is_alive()


def test_the_browser_s_arguments_hold_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given a private file that leads to the page."""
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/called\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s")

    assert client.open_browser("http://127.0.0.1:1/the-secret/")
    wait_for(lambda: (tmp_path / "called").exists() and (tmp_path / "called").read_text() != "", 30, "it was called")
    called = (tmp_path / "called").read_text()
    page = Path(called.strip().removeprefix("file://"))
    assert "the-secret" not in called
    assert 0o600 == page.stat().st_mode & 0o777
    assert 'url=http://127.0.0.1:1/the-secret/"' in page.read_text()
