"""Pages and packages as the master of one machine does them: verbs on stdin and frames, and what their files say."""

import contextlib
import dataclasses
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.errors import ClusterError, ConfigError
from cluster.hosts import Host
from cluster.inventory import ROOT, Cluster
from cluster.packages import __main__ as packages_verbs
from cluster.packages import recipes
from cluster.packages.client import Packages
from cluster.packages.interpreter import EnvironmentKind, EnvironmentRequest, Interpreter
from cluster.packages.ready import Ready
from cluster.packages.recipe import Recipe
from cluster.ssh.fanout import Executor
from cluster.ssh.onhost.frame import Frames, framed
from cluster.ssh.result import FanOut, FanOutError, Result
from cluster.tunnels import __main__ as verbs
from cluster.tunnels import client, jupyter_packages, jupyter_page, password, service, service_process
from cluster.tunnels.service import Service, ServicePaths, read_services
from cluster.tunnels.service import ServiceRequest as WantedPage

HERE = Host(rank=0, address="localhost", slots=1)


@pytest.fixture
def here(tmp_path: Path) -> Cluster:
    """This machine, with the project where it is."""
    return Cluster(name="here", hosts=(HERE,), folder=tmp_path, shared=str(tmp_path), project=str(ROOT))


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of this user's services, empty."""
    monkeypatch.setattr(service, "_BASE", tmp_path)
    return service.services_folder()


@pytest.fixture
def served(pages: Path) -> Iterator[Service]:
    """A page that answers with a status of its own, of a process that carries its tag."""
    name = "tensorboard-abc123"
    words = (
        "import http.server, sys\n"
        "class Page(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(int(self.path[1:])); self.end_headers()\n"
        "server = http.server.HTTPServer(('127.0.0.1', 0), Page)\n"
        "print(server.server_address[1], flush=True)\n"
        "server.serve_forever()"
    )
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", words],
        env={**os.environ, service.TAG: name},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout
        port = int(process.stdout.readline())
        made = Service(
            id=name, kind="tensorboard", job="all", asked_by="me", pid=process.pid, started=1.0, port=port, path="/200"
        )
        paths = ServicePaths(pages / name)
        paths.folder.mkdir(mode=0o700)
        paths.wanted.write_text(json.dumps(dataclasses.asdict(WantedPage(kind="tensorboard", shared="/x"))))
        os.utime(paths.wanted, (1, 1))
        paths.ready.write_text(json.dumps(dataclasses.asdict(made)))
        yield dataclasses.replace(made, folder=str(paths.folder))
        process.kill()


def answered(capfdbinary: Any, *words: str) -> tuple[int, Any, str]:
    """The exit code of a verb, its answer, and what it complains of."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        code = verbs.main(list(words))
    finally:
        signal.signal(signal.SIGTERM, before)
    said = capfdbinary.readouterr()
    answers = Frames().feed(said.out)
    return code, answers[-1] if answers else None, said.err.decode()


def test_services_are_listed_and_ended_by_their_ids(
    served: Service, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """One that is not there is an error of who asks; without an id all are ended; folders go with them."""
    code, answer, _ = answered(capfdbinary, "list")
    assert (0, [served.id], [False]) == (code, [one["id"] for one in answer], [one["attended"] for one in answer])
    ServicePaths(Path(served.folder)).seen.touch()
    assert [True] == [one.attended for one in read_services()]
    for bad in ("none", "../x", ".x"):
        code, answer, said = answered(capfdbinary, "end", bad)
        assert (2, None, f"there is no {bad} of yours here: inv tunnels lists them\n") == (code, answer, said)
    assert (0, [served.id], "") == answered(capfdbinary, "end")
    assert not Path(served.folder).exists()
    assert (0, [], "") == answered(capfdbinary, "list")
    assert (0, [], "") == answered(capfdbinary, "end")
    monkeypatch.setattr(jupyter_packages, "python", lambda: None)
    monkeypatch.setattr(jupyter_packages, "install", lambda: Path("/new/python"))
    assert (0, "", "") == answered(capfdbinary, "install")
    assert (0, "/new/python", "") == answered(capfdbinary, "install", "now")
    monkeypatch.setattr(service, "_BASE", Path("/nowhere/at/all"))
    code, answer, said = answered(capfdbinary, "list")
    assert (1, None, True) == (code, answer, said.endswith(": No such file or directory\n"))


def test_a_folder_that_a_killed_keeper_left_goes_with_the_next_service(pages: Path) -> None:
    """Once it is old; a young one may be about to begin."""
    for name, age_s in (("jupyter-old", 61.0), ("jupyter-young", 30.0)):
        (pages / name).mkdir()
        os.utime(pages / name, (time.time() - age_s,) * 2)
    paths = service.new_service(WantedPage(kind="jupyter", shared="/x", port=7))

    assert {"jupyter-young", paths.folder.name} == {p.name for p in pages.iterdir()}
    assert WantedPage(kind="jupyter", shared="/x", port=7) == service.read_wanted(paths)
    assert 0o600 == 0o777 & paths.wanted.stat().st_mode


def test_a_kept_page_says_where_it_is(pages: Path) -> None:
    """In a file of its user's alone, with all that was asked."""
    paths = ServicePaths(pages)
    page = SimpleNamespace(port=7, path="/p")
    service_process._announce(
        paths, WantedPage(kind="jupyter", shared="", job="j", asked_by="me"), page, "https://x", "f"
    )
    told = json.loads(paths.ready.read_text())

    assert ("jupyter", "j", "me", os.getpid(), 7, "/p", "https://x", "f", str(pages)) == tuple(
        told[n] for n in ("kind", "job", "asked_by", "pid", "port", "path", "public", "fingerprint", "folder")
    )
    assert 0o600 == 0o777 & paths.ready.stat().st_mode
    assert ("", "") == service_process._served_by_tls(WantedPage(kind="jupyter", shared=""), paths, page)


def test_a_kernel_has_the_runtime_and_the_cluster(tmp_path: Path) -> None:
    """The cluster only where its hosts are known."""
    for name, has_hosts in (("a", True), ("b", False)):
        (tmp_path / name).mkdir()
        if has_hosts:
            (tmp_path / name / "hosts").touch()
        wanted = WantedPage(kind="jupyter", shared="/s", cluster=str(tmp_path / name))
        jupyter_page.write_kernel(tmp_path / name / "kernels/dlami", Path("/py"), wanted)
        kernel = json.loads((tmp_path / name / "kernels/dlami/kernel.json").read_text())
        assert ["/py", "-m", "ipykernel_launcher", "-f", "{connection_file}"] == kernel["argv"]
        assert (str(ROOT), "/s/jobs") == (kernel["env"]["PYTHONPATH"], kernel["env"]["DLAMI_JOBS"])
        assert (str(tmp_path / name) if has_hosts else None) == kernel["env"].get("CLUSTER")


def test_jupyter_is_installed_once_beside_the_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its interpreter is there when all of it is; what pip says on stderr is the error."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    ran: list[list[str]] = []

    def run(words: list[str]) -> None:
        ran.append(words)
        if "venv" in words:
            Path(words[-1], "lib/python3.11/site-packages").mkdir(parents=True)
        assert jupyter_packages.python() is None, "it is not whole yet"

    with monkeypatch.context() as patched:
        patched.setattr(jupyter_packages, "_run", run)
        first, again = jupyter_packages.install(), jupyter_packages.install()
    assert first == again == jupyter_packages.python()
    assert ("bin", "python") == first.parts[-2:]
    assert 2 == len(ran)
    assert str(first) == ran[1][0]
    assert {*jupyter_packages.PACKAGES} <= set(ran[1])
    (runtime,) = first.parent.parent.glob("lib/python3*/site-packages/runtime.pth")
    assert "site-packages" in runtime.read_text()
    for script, last in (("echo one; echo two >&2; echo; exit 1", "two"), ("exit 1", "it said nothing")):
        with pytest.raises(ClusterError, match=f"^Jupyter is not installed: {last}; it needs a way to a package index"):
            jupyter_packages._run(["sh", "-c", script])
    jupyter_packages._run(["true"])


def test_a_password_is_typed_twice_or_read_from_a_private_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight characters are enough; others may not read the file."""
    answers = ["12345678", "12345678", "12345678", "other", "1234567"]
    monkeypatch.setattr(password.getpass, "getpass", lambda _: answers.pop(0))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    assert "12345678" == password.asked_for()
    with pytest.raises(ConfigError, match=r"^the two are not the same$"):
        password.asked_for()
    with pytest.raises(ConfigError, match=r"^the password has 7 characters, at least 8 are wanted$"):
        password.asked_for()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: False))
    with pytest.raises(ConfigError, match="there is no terminal to type a password on"):
        password.asked_for()
    file = tmp_path / "p"
    file.write_text(" 12345678 \nmore\n")
    for mode in (0o640, 0o604):
        file.chmod(mode)
        with pytest.raises(ConfigError, match=f"^{file} can be read by others: chmod 600 {file}$"):
            password.read_from(str(file))
    file.chmod(0o600)
    assert "12345678" == password.read_from(str(file))
    file.write_text("")
    with pytest.raises(ConfigError, match="has 0 characters"):
        password.read_from(str(file))
    with pytest.raises(ConfigError, match="none cannot be read: No such file"):
        password.read_from(str(tmp_path / "none"))


class Master:
    """A master that answers a command with what stands in `says`, one after the other."""

    def __init__(self, *says: tuple[int | None, bytes, bytes]) -> None:
        self.says = list(says)

    def run(self, hosts: Any, command: str, *, on_output: Any = None, **_: Any) -> FanOut:
        code, out, err = self.says.pop(0)
        if on_output:
            on_output(HERE, "stdout", out)
        return FanOut(command, {HERE: Result(host=HERE, exit_code=code, stdout=out, stderr=err, seconds=0.0)})


@pytest.mark.parametrize(
    ("code", "err", "kind", "says"),
    [
        (2, "there is no x", ConfigError, r"^there is no x$"),
        (1, "it ended", ClusterError, r"^it ended$"),
        (3, "odd", ClusterError, r"^the master \(localhost\) could not do it: odd$"),
        (1, "Traceback:\nboom", ClusterError, r"could not do it: Traceback"),
        (1, "", ClusterError, r"^the master \(localhost\) could not do it: exited 1$"),
        (None, "", ClusterError, r"^the master \(localhost\) could not do it: no answer$"),
        (0, "", ClusterError, r"^the master \(localhost\): it ended without an answer$"),
    ],
)
def test_what_the_master_refuses_is_said_in_its_words(
    here: Cluster, code: int | None, err: str, kind: type[ClusterError], says: str
) -> None:
    """A mistake of who asks is told from a failure; a traceback is no sentence."""
    with pytest.raises(kind, match=says) as failed:
        client.Services(Master((code, b"", err.encode())), here).list()
    assert kind is failed.type


def test_a_page_is_stayed_at_while_it_is_there(
    here: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], served: Service
) -> None:
    """A lost connection is said once, and once that it is back; a page that is gone ends it."""
    monkeypatch.setattr(client.time, "sleep", lambda _: None)
    reach: Any = Master(*((code, b"", b"") for code in (0, None, None, 0, 1)))
    with pytest.raises(ClusterError, match=r"^tensorboard was ended on the master: by inv tunnels --end, inv kill"):
        client._stay(client.Services(reach, here), served)
    assert [
        "the connection is lost; it is tried again until Ctrl-C",
        "the connection is back; the page is where it was",
    ] == capsys.readouterr().err.splitlines()
    with Executor(here) as real:
        services = client.Services(real, here)
        assert services.is_there(served) is True
        assert Path(served.folder, "seen").exists()
        assert services.is_there(dataclasses.replace(served, folder="/nowhere")) is False
    with client._way_in(here, served) as url:
        assert f"http://127.0.0.1:{served.port}/200" == url


# Packages ------------------------------------------------------------------------------------------------------------

WANTED = EnvironmentRequest(kind=EnvironmentKind.VENV, what="/v")
MADE = Ready(interpreter=Interpreter(wanted=WANTED, folder="/v"))


def said_by_packages(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: Any, verb: str, **given: Any
) -> tuple[int, list[Any]]:
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(given)))
    monkeypatch.setattr(packages_verbs, "heard_of", contextlib.nullcontext)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        code = packages_verbs.main(["--shared", "/nowhere/at/all", verb])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code, Frames().feed(capfdbinary.readouterr().out)


def test_each_verb_of_packages_has_an_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """An error is one too, with whose it is; an interruption has none."""

    def verb(name: str, **given: Any) -> tuple[int, list[Any]]:
        return said_by_packages(monkeypatch, capfdbinary, name, **given)

    code, (answer,) = verb("check", words=["true"], folder=str(tmp_path))
    assert (0, {"trouble": ""}) == (code, answer)
    assert "is not on the master" in verb("check", words=["true"], folder="/none")[1][0]["trouble"]
    code, answers = verb("ready", wanted={"kind": "venv", "what": "relative"})
    assert (0, True) == (code, answers[-1]["is_config"])
    assert answers[-1]["error"] == "--venv relative: give its absolute path, which is the same on all hosts"

    def raising(error: BaseException) -> Any:
        def answer(*_: Any) -> Any:
            raise error

        return answer

    for error, said in (
        (ClusterError("lost"), {"error": "lost", "is_config": False}),
        (OSError(2, "No such file", "/x"), {"error": "/x: No such file", "is_config": False}),
        (OSError("odd"), {"error": "/nowhere/at/all: odd", "is_config": False}),
    ):
        monkeypatch.setattr(packages_verbs, "_answer", raising(error))
        assert (0, [said]) == verb("list")
    monkeypatch.setattr(packages_verbs, "_answer", raising(KeyboardInterrupt()))
    assert (130, []) == verb("list")
    with pytest.raises(SystemExit):
        packages_verbs.main(["list"])
    with pytest.raises(SystemExit):
        packages_verbs.main(["--shared", "/x", "other"])


@pytest.mark.parametrize(
    ("changes_", "is_built", "brought", "says"),
    [
        (False, True, ("b",), ["--venv /v: this would build it on the master and bring it to b"]),
        (False, True, (), ["--venv /v: this would build it on the master"]),
        (False, False, ("b", "c"), ["--venv /v: this would bring it to b,c"]),
        (False, False, (), []),
        (True, True, ("b",), []),
        (True, False, (), []),
    ],
)
def test_a_look_says_what_would_be_done(
    here: Cluster, changes_: bool, is_built: bool, brought: tuple[str, ...], says: list[str]
) -> None:
    """Where it is done nothing of the kind is said, but what the master says meanwhile."""
    made = dataclasses.replace(MADE, is_built=is_built, brought=brought)
    words: list[str] = []
    reach: Any = Master((0, framed({"said": "working"}) + framed(dataclasses.asdict(made)), b""))
    found = Packages(reach, here, words.append).ready(WANTED, None, (HERE,), changes=changes_)

    assert ["working", *says] == words
    assert MADE.interpreter == found


def test_the_master_s_errors_are_raised_as_what_they_are(here: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """The operator's mistake, a failure, a command that failed, and no answer at all."""
    for answer, code, kind, says in (
        ({"error": "bad", "is_config": True}, 0, ConfigError, "^bad$"),
        ({"error": "bad", "is_config": False}, 0, ClusterError, "^bad$"),
        (None, 3, FanOutError, "^1 of 1 host failed"),
        (None, 0, ClusterError, r"^the master \(localhost\): it ended without an answer$"),
    ):
        reach: Any = Master((code, framed(answer) if answer else b"", b""))
        with pytest.raises(kind, match=says) as failed:
            Packages(reach, here).stock()
        assert kind is failed.type
    reach = Master((0, framed({"trouble": "no such script"}), b""), (0, framed({"trouble": ""}), b""))
    with pytest.raises(ConfigError, match=r"^no such script$"):
        Packages(reach, here).check(["x"], "/x", None, {})
    Packages(reach, here).check(["x"], "/x", None, {})
    reach = Master((0, framed({"said": "one"}) + framed({"left": {"b": "full"}}), b""))
    assert {"b": "full"} == Packages(reach, here).remove(["i"])
    assert "packages: one\n" == capsys.readouterr().err


def test_recipes_are_kept_once_and_forgotten(tmp_path: Path) -> None:
    """Of the first build the versions; what is gone is an error that says how to begin anew."""
    recipe = Recipe(main="r.txt", files={"r.txt": "bnVtcHk="})
    assert [] == recipes.kept_ids(str(tmp_path))
    recipes.keep(str(tmp_path), "x", recipe)
    recipes.keep(str(tmp_path), "x", Recipe(main="other", files={}))
    assert recipe == recipes.kept_recipe(str(tmp_path), "x")
    assert ["x"] == recipes.kept_ids(str(tmp_path))
    folder = tmp_path / "environments"
    assert (0o1777, 0o600) == (0o7777 & folder.stat().st_mode, 0o7777 & (folder / "x.json").stat().st_mode)
    for lines, kept in (("", ""), ("numpy==1\n", "numpy==1\n"), ("numpy==2\n", "numpy==1\n")):
        recipes.keep_installed(str(tmp_path), "x", lines)
        assert kept == recipes.kept_installed(str(tmp_path), "x")
    assert 0o600 == 0o7777 & (folder / "x.txt").stat().st_mode
    recipes.forget(str(tmp_path), "x")
    recipes.forget(str(tmp_path), "x")
    assert [] == list(folder.iterdir())
    with pytest.raises(ClusterError, match=r"x.json, by which .* cannot be read: No such file or directory; start it"):
        recipes.kept_recipe(str(tmp_path), "x")
    (folder / "x.json").write_text("{")
    with pytest.raises(ClusterError, match="cannot be read: Expecting"):
        recipes.kept_recipe(str(tmp_path), "x")
    (tmp_path / "file").touch()
    with pytest.raises(
        ClusterError, match=r"file/environments cannot be written, where lists of packages are kept: Not a"
    ):
        recipes.keep(str(tmp_path / "file"), "x", recipe)
    recipes.keep_installed(str(tmp_path / "file"), "x", "numpy")
    assert "" == recipes.kept_installed(str(tmp_path / "file"), "x")
