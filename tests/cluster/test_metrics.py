"""`inv metrics`: Prometheus' text format, as Prometheus' own tool reads it, and a file that is whole at every moment."""

import dataclasses
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.errors import ConfigError
from cluster.inventory import Cluster
from cluster.metrics.command import check_target, tell_metrics
from cluster.metrics.families import families
from cluster.metrics.text import Family, text_of
from cluster.top.snapshot import ClusterSnapshot, JobSeen, Visibility
from tests.cluster.frames import frame, seen, told, vitals_of
from tests.conftest import PATIENCE_S

JOB = JobSeen(
    id="20261120-231500-resnet50-x7", name="resnet50", state="running", attempt=2, np=4, steps=500, step=10,
    images_per_s=40.5, started="", hosts=("a",),
)  # fmt: skip
PROMTOOL = shutil.which("promtool") or shutil.which("promtool", path=str(Path(sys.executable).parent))


@pytest.fixture
def promtool() -> str:
    if not PROMTOOL:
        pytest.skip("promtool is not installed: 'make promtool' gets Debian's (package prometheus)")
    return PROMTOOL


def a_frame() -> ClusterSnapshot:
    """A host with GPUs, one that is slow, one that is gone, and a job."""
    with_gpus = dataclasses.replace(seen(0), vitals=vitals_of(told("p4d.24xlarge-535.183")))
    return frame(
        with_gpus, seen(1, ping_s=0.04), seen(2), seen(3, sight=Visibility.GONE, why="no connection"), jobs=(JOB,)
    )


def checked(promtool: str, text: str) -> str:
    """What promtool complains of."""
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=PATIENCE_S
    )
    return done.stdout + done.stderr + ("" if done.returncode == 0 else f"exited {done.returncode}")


def test_prometheus_own_tool_has_nothing_to_say(promtool: str) -> None:
    """Neither of the format nor of names, units and help; and it does complain of what is wrong."""
    text = text_of(families(a_frame(), {JOB.id: 0.95}))

    assert "" == checked(promtool, text)
    assert checked(promtool, text.replace("dlami_host_up{", "dlami_host_up{{"))
    assert "counter" in checked(promtool, text.replace("gauge", "counter"))


def test_every_promise_has_its_numbers() -> None:
    """Hosts, GPUs, the job, its useful time, ranks; of a host that is not seen only that it is not."""
    text = text_of(families(a_frame(), {JOB.id: 0.95}))
    gone = [line for line in text.splitlines() if '"10.0.0.4"' in line]

    assert ['dlami_host_up{cluster="c",host="10.0.0.4",host_rank="3"} 0'] == gone
    assert 'dlami_gpu_temperature_celsius{cluster="c",host="10.0.0.1",host_rank="0",gpu="4"} 83' in text
    assert re.search(r'dlami_host_odd\{cluster="c",host="10.0.0.2",.*what="ping"\} \d', text)
    assert f'dlami_job_ettr_ratio{{cluster="c",job="{JOB.id}",name="resnet50"}} 0.95' in text
    assert re.search(r'dlami_rank_waiting_ratio\{.*rank="1",waits_for="ranks"\} 0\.2\n', text)
    assert "ettr" not in text_of(families(a_frame(), {}))


@given(st.dictionaries(st.sampled_from(["a", "b"]), st.text(), min_size=1), st.floats())
def test_any_label_and_number_can_be_read_back(labels: Any, value: float) -> None:
    """Quotes, backslashes and line ends are escaped, and nothing else; numbers lose nothing."""
    family = Family("dlami_x", "Help.")
    family.add(value, **labels)
    line = text_of([family]).split("\n", 2)[2].rstrip("\n")
    read = re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', line, flags=re.S)
    unescaped = {name: re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), said) for name, said in read}

    assert labels == unescaped
    assert "\n" not in line
    number = float(line.rsplit(" ", 1)[1])
    assert number == value or value != value


def test_a_file_that_no_exporter_would_read_is_refused(tmp_path: Path) -> None:
    """Before any host is asked."""
    with pytest.raises(ConfigError, match=r"end with \.prom"):
        check_target(tmp_path / "metrics.txt")
    with pytest.raises(ConfigError, match="no folder"):
        check_target(tmp_path / "none/metrics.prom")


def test_a_host_that_is_not_up_is_told_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cluster: Cluster
) -> None:
    """Beside the numbers, where whoever reads of the 0 looks next."""
    gone = frame(seen(0), seen(1, sight=Visibility.GONE, why="no connection"))
    monkeypatch.setattr("cluster.metrics.command.one_frame", lambda *_: gone)
    tell_metrics(cluster, cluster.hosts, None)
    told = capsys.readouterr()

    assert re.search(r'dlami_host_up\{.*host_rank="1"\} 0\n', told.out)
    assert f"{gone.hosts[1].host}: gone: no connection\n" == told.err
