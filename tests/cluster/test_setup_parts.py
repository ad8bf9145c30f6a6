"""`inv setup` and what health's settings are made: what becomes of each host, and what is said of it. No lab."""

import json
from pathlib import Path
from typing import Any, cast

import pytest

from cluster.clusterfile.checks import FieldError
from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.setup import at_boot, node_settings, setup
from cluster.setup.node_settings import apply_changes, find_changes
from cluster.setup.onhost import script as onhost
from cluster.setup.onhost import settings
from cluster.setup.script import MOST_BYTES, Script, read_script
from cluster.setup.setup import SetupStepResult, install_environment, run_script
from cluster.ssh.fanout import Executor
from cluster.ssh.result import FanOut, Result
from tests.cluster.reach_here import ReachHere

A, B, C = (Host(rank=n, address=a, slots=1) for n, a in enumerate("abc"))
REACH = cast("Executor", None)


def a_cluster(project: str = "/p", **more: Any) -> Cluster:
    return Cluster(name="c", hosts=(A, B, C), folder=Path(), shared="/efs", project=project, **more)


def answering(monkeypatch: pytest.MonkeyPatch, module: Any, answer: Any) -> None:
    """What hosts answer to what they are told themselves; a text in an answer's place is why there is none."""

    def ask(reach: Any, hosts: Any, sent: Any, own: Any = lambda host: (), **_: Any) -> Any:
        said = {h: answer(h, *own(h)) for h in hosts}
        failed = {h: one for h, one in said.items() if isinstance(one, str)}
        results = {
            h: Result(host=h, exit_code=int(h in failed), stderr=failed.get(h, "").encode(), seconds=0.0) for h in hosts
        }
        return FanOut("ask", results), {h: one for h, one in said.items() if h not in failed}

    monkeypatch.setattr(module, "ask", ask)


def test_a_dry_run_says_where_a_script_would_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """By force everywhere, and no host is asked; a host that does not answer has failed."""
    script = Script(name="s", text="x")
    answering(monkeypatch, setup, lambda h, *own: "down" if h == B else {"state": "before"} if not own else "told")
    found = run_script(REACH, a_cluster(), [A, B], script, limit_s=5, force=False, dry_run=True)
    assert {
        A: SetupStepResult(what="s", state="before"),
        B: SetupStepResult(what="s", state="failed", why="exited 1   | down"),
    } == found
    forced = run_script(REACH, a_cluster(), [A, B], script, limit_s=5, force=True, dry_run=True)
    assert {h: SetupStepResult(what="s", state="would run") for h in (A, B)} == forced


def a_project(home: Path, install: str, *, has_packages: bool = False) -> None:
    for name, text in (("scripts/install.sh", install), (".venv/bin/python", f"exit {int(not has_packages)}")):
        (home / "p" / name).parent.mkdir(parents=True, exist_ok=True)
        (home / "p" / name).write_text(f"#!/bin/sh\n{text}\n")
        (home / "p" / name).chmod(0o755)


def test_an_environment_is_installed_where_it_is_missing(tmp_path: Path) -> None:
    """Nowhere in a dry run; a host without the project or out of reach has failed, and says why."""
    reach = ReachHere(tmp_path, {"d": "down"})
    d, e = Host(rank=3, address="d", slots=1), Host(rank=4, address="e", slots=1)
    a_project(tmp_path / "a", "touch installed", has_packages=True)
    a_project(tmp_path / "b", "touch installed; echo fine")
    a_project(tmp_path / "c", "touch installed; seq 10; echo >&2 no room; exit 3")
    cluster, hosts = a_cluster("p"), [A, B, C, d, e]
    before = {A: "there", B: "would run", C: "would run", d: "failed", e: "failed"}
    dry = install_environment(reach, cluster, hosts, dry_run=True)
    assert before == {h: one.state for h, one in dry.items()}
    assert ("exited 255   | down", "p is not there: inv sync brings it") == (dry[d].why, dry[e].why)
    assert not list(tmp_path.rglob("installed"))
    done = install_environment(ReachProject(tmp_path, {"d": "down"}), cluster, hosts, dry_run=False)
    assert {**before, B: "done", C: "failed"} == {h: one.state for h, one in done.items()}
    assert {"b", "c"} == {p.parent.name for p in tmp_path.rglob("installed")}
    assert ("", (), "environment") == (done[B].why, done[B].tail, done[B].what)
    assert ("exited 3   | no room", (*"45678", "9", "10", "no room")) == (done[C].why, done[C].tail)
    assert {A: done[A]} == install_environment(reach, cluster, [A], dry_run=False)


class ReachProject(ReachHere):
    """Where a command without a slash would be looked for on PATH, it is that of the host's folder."""

    def run(self, hosts: Any, command: Any, **more: Any) -> FanOut:
        return super().run(hosts, command.replace("exec p/", "exec ./p/"), **more)


def test_settings_are_found_and_changed_host_by_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are compared, also those that are not to be changed; one that cannot be asked says why."""
    told = {"gpus": [], "kernel": {"kernel.numa_balancing": "1"}}

    def now(host: Host, address: str) -> Any:
        assert address == host.address
        return "down" if host == C else {**told, "card": ["ens5", 1500 if host == B else 9001]}

    answering(monkeypatch, node_settings, now)
    found, why = find_changes(REACH, a_cluster(), [B, C])
    assert ({B: ["MTU of ens5", "kernel.numa_balancing"]}, {C: "exited 1   | down"}) == (
        {h: [c.what for c in some] for h, some in found.items()}, why
    )  # fmt: skip
    assert ("1500", "9001", ("ip", "link", "set", "ens5", "mtu", "9001")) == (
        found[B][0].before, found[B][0].after, found[B][0].command
    )  # fmt: skip
    answering(monkeypatch, node_settings, lambda h, commands: "down" if h == C else ["", "no"][: len(commands)])
    done = apply_changes(REACH, {A: [], B: found[B], C: found[B]})
    assert {B: [(True, ""), (False, "no")], C: [(False, "exited 1   | down")] * 2} == {
        h: [(c.is_done, c.why_not) for c in some] for h, some in done.items()
    }


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Programs of a host, by name and shell script; no others are found."""

    def put(**scripts: str) -> None:
        for name, text in scripts.items():
            (tmp_path / "bin").mkdir(exist_ok=True)
            (tmp_path / "bin" / name.replace("_", "-")).write_text(f"#!/bin/sh\n{text}\n")
            (tmp_path / "bin" / name.replace("_", "-")).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")

    return put


def test_a_host_tells_its_settings(programs: Any) -> None:
    """The card that has its address, what its kernel has; no GPU where there is no driver."""
    links = [
        {"ifname": "lo", "mtu": 65536, "addr_info": [{"local": "127.0.0.1"}]},
        {"ifname": "ens5", "mtu": 9001, "addr_info": [{"local": "10.0.0.1"}, {}]},
        {"ifname": "ens6", "mtu": 1500, "addr_info": [{"local": "10.0.0.2"}]},
    ]
    programs(ip=f"echo '{json.dumps(links)}'")
    told = settings.now("10.0.0.1", ["net.core.somaxconn", "no.such.name"])
    least = Path("/proc/sys/net/core/somaxconn").read_text().strip()
    assert {"gpus": [], "gpus_unread": "", "card": ["ens5", 9001], "kernel": {"net.core.somaxconn": least}} == told
    programs(ip="true")
    assert settings.now("10.0.0.1", [])["card"] is None


def test_commands_are_run_one_after_another(programs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each says why it failed, in its own last words; what takes too long is ended."""
    programs(good="exit 0", bad="echo first >&2; echo last >&2; exit 3", out="echo said; exit 3", mute="exit 3")
    why = settings.change([["bad"], ["good"], ["out"], ["mute"], ["nonesuch"]])
    assert ["bad: first ... last", "", "out: said", "mute: exited 3"] == why[:4]
    assert "No such file or directory: 'nonesuch'" in why[4]
    monkeypatch.setattr(settings, "_LIMIT_S", 0.05)
    programs(slow="exec sleep 60")
    assert ["slow did not end within 0.05 s"] == settings.change([["slow"]])
    said: list[Any] = []
    monkeypatch.setattr(settings, "say", said.append)
    settings.main("change", [["mute"]])
    assert [["mute: exited 3"]] == said


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A host's part of set-up below tmp_path, and what it says."""
    said: list[Any] = []
    monkeypatch.setattr(onhost, "STAMPS", str(tmp_path / "stamps"))
    monkeypatch.setattr(onhost, "LOG", str(tmp_path / "log"))
    monkeypatch.setattr(at_boot, "LOG", str(tmp_path / "log"))
    monkeypatch.setattr(onhost, "say", said.append)
    return said


def test_a_host_says_whether_a_script_would_run(own: list[Any], tmp_path: Path) -> None:
    """It would until it has succeeded; what stands in its stamp is its name and when."""
    onhost.main("plan", "d1")
    onhost.main("run", "s", "exit 3", "d1", 60.0, False, {})
    onhost.main("plan", "d1")
    onhost.main("run", "s", "echo $X", "d1", 60.0, False, {"X": "1"})
    onhost.main("plan", "d1")
    onhost.main("plan", "d2")
    states = ["would run", "failed", "would run", "done", "before", "would run"]
    assert states == [one["state"] for one in own]
    assert ("", [], "it exited 3") == (own[3]["why"], own[3]["tail"], own[1]["why"])
    assert (own[3]["seconds"], "1\n") == (pytest.approx(0, abs=20), (tmp_path / "log").read_text())
    assert "s" == json.loads((tmp_path / "stamps/d1").read_text())["name"]
    assert (0o644, {".lock", "d1"}) == (
        (tmp_path / "stamps/d1").stat().st_mode & 0o777, {p.name for p in (tmp_path / "stamps").iterdir()}
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ('echo "$DLAMI_ROLE $DLAMI_CLUSTER $DLAMI_SHARED $DLAMI_PROJECT $DLAMI_USER"', 0, "worker c /efs /p u\n"),
        ("echo a; echo b; exit 4", 1, "a\nb\nit exited 4: b\n"),
        ("exit 4", 1, "it exited 4\n"),
    ],
)
def test_at_a_first_boot_the_script_s_words_are_in_the_boot_s_log(
    own: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, text: str, code: int, said: str
) -> None:
    """A failure's reason is the last of them; at the next boot it is not run again, and another script never."""
    told = {"NAME": "c", "ROLE": "worker", "SHARED": "/efs", "PROJECT": "/p", "LOGIN": "u", "BOOT_SECONDS": "60"}
    told["SETUP"] = Script(name="setup", text=text).digest
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "script").write_text(text)
    assert code == at_boot.main(str(tmp_path / "script"))
    assert said == capsys.readouterr().out
    assert code == at_boot.main(str(tmp_path / "script"))
    assert (said if code else "") == capsys.readouterr().out
    (tmp_path / "script").write_text(f"touch {tmp_path}/evil")
    assert 1 == at_boot.main(str(tmp_path / "script"))
    assert f"is not the script that the stack names, {told['SETUP']}" in capsys.readouterr().out
    assert not (tmp_path / "evil").exists()


def test_a_script_may_be_as_long_as_a_stack_takes(tmp_path: Path) -> None:
    """Its bytes count, and it is known by them; what is no text is no script."""
    path = tmp_path / "s.sh"
    path.write_text("x" * (MOST_BYTES - 2) + "ä")
    one = read_script(path)
    assert ("s.sh", 16) == (one.name, len(one.digest))
    assert one.digest == Script(name="other", text=one.text).digest != Script(name="s.sh", text="x").digest
    path.write_text("x" * (MOST_BYTES - 1) + "ä")
    with pytest.raises(FieldError, match="has 16,385 bytes, at most 16,384 travel"):
        read_script(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(FieldError, match="cannot be read as a script"):
        read_script(path)
    with pytest.raises(FieldError, match="cannot be read as a script"):
        read_script(tmp_path)
