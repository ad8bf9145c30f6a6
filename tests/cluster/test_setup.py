"""The set-up script: what is refused before a host is reached, and that a host runs it once for its content."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from cluster.clusterfile.checks import FieldError
from cluster.hosts import Host
from cluster.inventory import ROOT
from cluster.setup import node_settings
from cluster.setup.onhost import script as onhost
from cluster.setup.onhost import settings
from cluster.setup.onhost.settings import GPU_FIELDS
from cluster.setup.script import MOST_BYTES, read_script
from tests.conftest import PATIENCE_S, wait_for
from tests.processes import SHEBANG, begun


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (" \n", "is empty"),
        ("x" * (MOST_BYTES + 1), "at most 16,384 travel with a stack"),
        (
            "#!/bin/sh\necho '-----BEGIN OPENSSH PRIVATE KEY-----\n" + 40 * "b" + "'\n",
            "script.sh:2 holds a private key",
        ),
        ("git clone https://x\ntoken=ghp_" + 36 * "a" + "\n", "script.sh:2 holds a GitHub token"),
        ("export AWS_ACCESS_KEY_ID=AKIA" + "ABCDEFGHIJKLMNOP\n", "holds an AWS access key"),
        ("git clone https://me:geheim@example.org/x\n", "holds a password in an address"),
    ],
)
def test_what_no_node_should_get_is_refused(tmp_path: Path, text: str, said: str) -> None:
    """It travels in the stack's template, which everybody with the right to look at the stack can read."""
    path = tmp_path / "script.sh"
    path.write_text(text)
    with pytest.raises(FieldError, match="setup: ") as error:
        read_script(path)

    assert said in str(error.value)
    with pytest.raises(FieldError, match="there is no file"):
        read_script(tmp_path / "other")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A host's part, with its folders below tmp_path."""
    monkeypatch.setattr(onhost, "STAMPS", str(tmp_path / "stamps"))
    monkeypatch.setattr(onhost, "LOG", str(tmp_path / "log"))

    def once(text: str, limit_s: float = 60.0, force: bool = False, digest: str = "") -> dict[str, Any]:
        told = {"PLACE": str(tmp_path)}
        return onhost.run_once("mine.sh", text, digest or f"{hash(text):x}", told, limit_s, force)

    return once


def test_it_runs_once_for_its_content(run: Any, tmp_path: Path) -> None:
    """Again after a change, or by force; never where it has succeeded."""
    text = 'echo ran >>"$PLACE/ran"'
    states = [run(text)["state"], run(text)["state"], run(text + "\n")["state"], run(text, force=True)["state"]]

    assert ["done", "before", "done", "done"] == states
    assert 3 == len((tmp_path / "ran").read_text().splitlines())


def test_a_failure_is_told_with_its_last_lines_and_tried_again(run: Any, tmp_path: Path) -> None:
    """No stamp is left by what failed, by whatever it failed."""
    text = 'echo first\n[ -e "$PLACE/there" ] || { echo "no such package: foo" >&2; exit 7; }\nnonesuch || true\n'
    failed = run(text)
    assert ("failed", "it exited 7", ["first", "no such package: foo"]) == (
        failed["state"],
        failed["why"],
        failed["tail"],
    )
    (tmp_path / "there").touch()
    assert "done" == run(text)["state"]
    assert "before" == run(text)["state"]
    assert "mine.sh: line 1: nonesuch: command not found" in run("nonesuch")["tail"]
    assert (
        "it could not be started, by its first line '#!/no/such': No such file or directory" == run("#!/no/such")["why"]
    )
    assert "it was ended by signal 9" == run("kill -9 $$")["why"]
    assert ["by Python"] == run(f"{SHEBANG}print('by Python')\nexit(3)\n")["tail"]


def test_at_its_limit_all_of_it_is_ended(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it started, too, and what does not heed a TERM."""
    monkeypatch.setattr(onhost, "_GRACE_S", 0.5)
    ended = run('sleep 4321 & echo $! >"$PLACE/child"; trap "" TERM; wait; sleep 4321', limit_s=2.0)
    child = int((tmp_path / "child").read_text())

    assert ("failed", True) == (ended["state"], ended["why"].startswith("it did not end within "))
    state = Path(f"/proc/{child}/stat")
    assert not state.exists() or ") Z" in state.read_text()
    assert not list((tmp_path / "stamps").glob("[!.]*"))


def test_two_at_once_run_it_once(run: Any, tmp_path: Path) -> None:
    """`inv setup` while a node boots: the second waits, and finds it done."""
    text = 'echo ran >>"$PLACE/ran"; until [ -e "$PLACE/go" ]; do sleep 0.05; done'
    ends: list[str] = []
    both = [threading.Thread(target=lambda: ends.append(run(text, digest="one")["state"])) for _ in range(2)]
    for thread in both:
        thread.start()
    wait_for((tmp_path / "ran").exists, 60, "one runs it")
    (tmp_path / "go").touch()
    for thread in both:
        thread.join(PATIENCE_S)

    assert (["before", "done"], "ran\n") == (sorted(ends), (tmp_path / "ran").read_text())


def test_killed_in_the_middle_it_has_not_succeeded(tmp_path: Path) -> None:
    """A host that goes down while it runs begins again; nothing of the script is left on its disk."""
    code = (
        "import sys; from cluster.setup.onhost import script as s; s.STAMPS, s.LOG = sys.argv[1:3];"
        "s.run_once('mine.sh', 'echo begun; sleep 4321', 'one', {}, 600, False)"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "stamps"), str(tmp_path / "log")]
    with begun(words, cwd=ROOT, start_new_session=True) as running:
        wait_for(lambda: "begun" in (tmp_path / "log").read_text(), 60, "it has begun")
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        running.kill()
    for child in children:
        subprocess.run(["kill", "-9", "--", f"-{child}"], check=False)

    assert signal.SIGKILL == -running.returncode
    assert [".lock"] == [p.name for p in (tmp_path / "stamps").iterdir()]
    assert {"log", "stamps"} == {p.name for p in tmp_path.iterdir()}


def a_gpu(**changed: str) -> dict[str, str]:
    """A GPU as `nvidia-smi --query-gpu` tells of a well set V100."""
    values = ("0", "Enabled", "877", "1530", "877", "1530", "300.00", "300.00")
    return {**dict(zip(GPU_FIELDS, values, strict=True)), **{k.replace("__", "."): v for k, v in changed.items()}}


def test_only_what_differs_is_changed_and_what_a_gpu_lacks_is_left_alone() -> None:
    """The commands are those of `nvidia-smi -h`; a driver without application clocks says [N/A]."""
    assert [] == node_settings.gpu_changes([a_gpu(), a_gpu(clocks__applications__memory="[N/A]", power__limit="[N/A]")])
    changes = node_settings.gpu_changes(
        [a_gpu(index="3", persistence_mode="Disabled", clocks__applications__graphics="1312", power__limit="250.00")]
    )
    assert ["-pm 1", "-ac 877,1530", "-pl 300.00"] == [" ".join(c.command[3:]) for c in changes]
    assert all(("nvidia-smi", "-i", "3") == c.command[:3] for c in changes)
    assert "GPU 3 persistence mode: off -> on  (nvidia-smi -i 3 -pm 1)" == str(changes[0])

    now = {"net.core.somaxconn": "128", "net.core.rmem_max": "33554432", "kernel.numa_balancing": "1"}
    assert ["net.core.somaxconn=4096", "kernel.numa_balancing=0"] == [
        c.command[2] for c in node_settings.kernel_changes(now)
    ]


@pytest.mark.parametrize(
    ("sizes", "changed"),
    [((9001, 9001, 1500), {2: "9001"}), ((9001, 1500), {1: "9001"}), ((1500, 9001, 9001), {0: "9001"}), ((1500,), {})],
)
def test_all_hosts_get_the_frames_that_most_have(sizes: tuple[int, ...], changed: dict[int, str]) -> None:
    """The master's, where there is no most."""
    cards = {Host(rank=n, address=f"h{n}", slots=1): ["ens5", mtu] for n, mtu in enumerate(sizes)}
    cards = dict(reversed(cards.items()))

    assert changed == {h.rank: c.after for h, c in node_settings.mtu_changes(cards).items()}


def test_settings_of_gpus_are_read_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that is no row, such as a driver's complaint, is no GPU."""
    whole = ", ".join(f"{name}'s" for name in GPU_FIELDS)
    said = f"#!/bin/sh\nprintf '%s\\n' \"{whole}\" 'Unable to determine the device handle'\n"
    (tmp_path / "nvidia-smi").write_text(said)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    assert [{name: f"{name}'s" for name in GPU_FIELDS}] == settings.now("", [])["gpus"]


@pytest.mark.parametrize(
    ("rows", "code", "cards", "why"), [(1, 15, 2, "lost"), (1, 0, 2, "1 of 2"), (2, 0, 2, ""), (0, 9, 0, "")]
)
def test_one_dead_gpu_keeps_no_settings_from_the_others(
    rows: int, code: int, cards: int, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its host is still named; an image for GPUs on a machine without one is nothing to name."""
    whole = ", ".join(f"{name}'s" for name in GPU_FIELDS)
    lines = f'echo "{whole}"\n' * rows + (
        "echo 'Unable to determine the device handle: GPU is lost' >&2\n" if code else ""
    )
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{lines}exit {code}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(settings, "devices", lambda: {"gpus": cards})

    told = settings.now("", [])
    assert rows == len(told["gpus"])
    assert why in told["gpus_unread"] and bool(why) == bool(told["gpus_unread"])
