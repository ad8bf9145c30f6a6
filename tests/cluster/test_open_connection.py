"""Commands over an open connection: the socket of an `ssh -M` is played here, its commands run on this machine."""

import array
import contextlib
import hashlib
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import ClusterError, ConfigError
from cluster.hosts import Host
from cluster.inventory import ROOT, Cluster, SshSettings, Tunnel
from cluster.ssh import connections, fanout, mux, options
from cluster.ssh.agent_exchange import AWAITED, Exchange
from cluster.ssh.capture import Capture, MemoryBudget, Spilled
from cluster.ssh.failure import Failure, Reason
from cluster.ssh.fanout import Executor, FanoutProgress
from cluster.ssh.limits import Limits, check_environment, with_environment
from cluster.ssh.options import Route, way_to
from cluster.ssh.program import program
from cluster.ssh.remote_agent import Dialogue
from cluster.ssh.result import FanOutError, Result
from tests.conftest import PATIENCE_S, wait_for

HERE = Host(rank=0, address="localhost", slots=1)
FAR = Host(rank=1, address="far.invalid", slots=1)


class Master:
    """An `ssh -M` at a control socket: it runs commands, leads to ports, answers, and ends when it is asked to."""

    def __init__(self, path: Path) -> None:
        self.refusals = 0  # of the sessions and ways that are asked for next
        self.sends_code = True
        self.door = socket.socket(socket.AF_UNIX)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.door.bind(str(path))
        self.door.listen()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self.serve, args=(self.door.accept()[0],), daemon=True).start()

    def serve(self, client: socket.socket) -> None:
        fds: list[int] = []
        with contextlib.suppress(OSError), client:  # who asked may have gone
            self.hear(client, fds)
        for fd in fds:
            with contextlib.suppress(OSError):
                os.close(fd)

    def hear(self, client: socket.socket, fds: list[int]) -> None:
        received = bytearray()
        client.sendall(mux.hello())
        kind, body, wanted = 0, b"", 99
        while not kind or len(fds) < wanted:
            data, extra, _, _ = client.recvmsg(4096 if not kind else 1, socket.CMSG_SPACE(4))
            if not data:
                return
            for _, _, more in extra:
                fds.extend(array.array("i", more))
            if kind:
                continue
            received += data
            for kind, body in mux.messages(received):  # noqa: B007 - the last is the request
                pass
            kind = 0 if kind == mux._HELLO else kind
            wanted = {mux._NEW_SESSION: 3, mux._NEW_FORWARD: 2}.get(kind, 0)
        self.answer(client, kind, body, fds)

    def answer(self, client: socket.socket, kind: int, body: bytes, fds: list[int]) -> None:
        if kind == mux._ALIVE_CHECK:
            client.sendall(mux._packed(struct.pack(">III", mux._ALIVE, 1, os.getpid())))
        elif kind == mux._TERMINATE:
            self.door.close()
            client.sendall(mux._packed(struct.pack(">II", mux._OK, 1)))
        elif self.refusals:
            self.refusals -= 1
            client.sendall(mux._packed(struct.pack(">II", mux._FAILURE, 1) + mux._text("no more sessions")))
        elif kind == mux._NEW_FORWARD:
            address = mux._string(body, 8).decode()
            client.sendall(mux._packed(struct.pack(">III", mux._OPENED, 1, 7)))
            os.write(fds[0], f"{address} {struct.unpack('>I', body[-4:])[0]}".encode())
            client.recv(1)
        else:
            command = mux._string(body, 32).decode()
            client.sendall(mux._packed(struct.pack(">III", mux._OPENED, 1, 7)))
            done = subprocess.Popen(["sh", "-c", command], stdin=fds[0], stdout=fds[1], stderr=fds[2]).wait()
            if self.sends_code:
                client.sendall(mux._packed(struct.pack(">III", mux._EXIT, 7, done)))


@pytest.fixture
def two(tmp_path: Path) -> Cluster:
    """This machine and another host."""
    access = SshSettings(user="ubuntu", key=tmp_path / "key")
    return Cluster(name="two", hosts=(HERE, FAR), folder=tmp_path, shared="", project="", access=access)


@pytest.fixture
def master(two: Cluster) -> Iterator[Master]:
    """The connection to the other host is open."""
    path = way_to(FAR, two.access).socket
    made = Master(path)
    yield made
    made.door.close()
    path.unlink(missing_ok=True)


def test_a_command_on_each_host_has_its_result(two: Cluster, master: Master) -> None:
    """Exit code, output, input and environment: over a connection as on this machine."""
    heard: list[tuple[Host, str, bytes]] = []
    progress: list[FanoutProgress] = []
    with Executor(two) as reach:
        results = reach.run(
            two.hosts,
            lambda h: f"cat; echo {h.rank} $A; echo no >&2; exit {3 * h.rank}",
            stdin=lambda h: f"in {h.rank}\n".encode(),
            environment={"A": "b c"},
            on_output=lambda *said: heard.append(said),
            on_progress=progress.append,
        )
        connected = reach.connect(two.hosts)

    assert [(0, b"in 0\n0 b c\n", b"no\n", None), (3, b"in 1\n1 b c\n", b"no\n", None)] == [
        (r.exit_code, r.stdout, r.stderr, r.failure) for r in results.values()
    ]
    assert {(h, "stderr", b"no\n") for h in two.hosts} <= set(heard)
    assert b"in 1\n1 b c\n" == b"".join(data for h, stream, data in heard if (h, stream) == (FAR, "stdout"))
    assert [(0, True), (0, True)] == [(r.exit_code, r.ok) for r in connected.values()]
    assert all(p.hosts == 2 and p.done + len(p.running) <= 2 and p.failed <= p.done for p in progress)
    with pytest.raises(FanOutError, match="1 of 2 hosts failed"):
        results.check()


def test_a_command_may_have_begun_once_it_was_handed_over(two: Cluster, master: Master) -> None:
    """Before that nothing of it is to be ended there."""
    for host, command, begun in ((FAR, "true", True), (HERE, "true", True), (FAR, None, False), (HERE, None, False)):
        one = fanout.Conversation(
            host,
            None if host == HERE else way_to(FAR, two.access),
            command,
            stdin=lambda: os.open(os.devnull, os.O_RDONLY),
            limits=Limits(),
            memory=MemoryBudget(Path),
            selector=fanout.selectors.DefaultSelector(),
        )
        assert (False, True) == (one.may_have_begun, one.is_connecting)
        one.start()
        assert begun == one.may_have_begun
        one.finish()
        assert one.result
        assert not one.is_connecting


@pytest.mark.parametrize(
    ("limits", "reason", "limit_s"),
    [
        (Limits(total_s=0.1), Reason.TIME_LIMIT, 0.1),
        (Limits(silence_s=0.2), Reason.SILENCE, 0.2),
        (Limits(silence_s=60, total_s=0.1), Reason.TIME_LIMIT, 0.1),
    ],
)
def test_a_command_over_a_limit_is_given_up(two: Cluster, limits: Limits, reason: Reason, limit_s: float) -> None:
    """With the limit that it passed."""
    with Executor(two) as reach:
        done = reach.run([HERE], "exec sleep 1000", limits=limits)[HERE]

    assert done.failure
    assert (reason, limit_s, "") == (done.failure.reason, done.failure.limit_s, done.failure.left)
    assert (None, False) == (done.exit_code, done.ok)


def test_a_program_far_away_is_asked_again_and_again(two: Cluster, master: Master) -> None:
    """Its answers come with their host; a question that is not answered yet is waited for, one that was is not."""
    line = Exchange(FAR, "true", b"")
    assert (AWAITED, "", 0) == (line.trouble, line.nonsense, line.failures)
    asked = program("cluster.stage.onhost.look", "/nowhere")
    with Executor(two) as reach, Dialogue(reach, [FAR], asked, lambda _: []) as dialogue:
        assert dialogue.ask(FAR)
        assert not dialogue.ask(FAR)
        assert dialogue.waits_s(FAR) > 0
        told: list[Any] = []
        wait_for(lambda: bool(told.extend(dialogue.listen(0.05)) or told), PATIENCE_S, "it answers")

        assert (FAR, False) == (told[0].host, told[0].answer["there"])
        assert 0 <= told[0].took_s < PATIENCE_S
        wait_for(lambda: bool(dialogue.listen(0.05) or dialogue.failures(FAR)), PATIENCE_S, "its end is noticed")
        assert "our program ended there with exit code 0" == dialogue.trouble(FAR)
        assert 0.0 == dialogue.waits_s(FAR)


def test_a_port_behind_the_connection_is_a_socket(two: Cluster, master: Master) -> None:
    """To the address and port as the other end names them; one that leads nowhere is refused in ssh's words."""
    path = way_to(FAR, two.access).socket
    with mux.Forwarded(path, "10.0.0.9", 8888, 5) as way:
        assert b"10.0.0.9 8888" == way.recv(100)
    master.refusals = 1
    with pytest.raises(ConnectionRefusedError, match="no more sessions"):
        mux.Forwarded(path, "10.0.0.9", 8888, 5)
    with pytest.raises(FileNotFoundError):
        mux.Forwarded(path.with_name("nobody"), "10.0.0.9", 8888, 5)


def test_a_connection_that_lives_is_kept_and_ended_when_asked(two: Cluster, master: Master) -> None:
    """Its socket is not removed while somebody answers there; what is dead is forgotten."""
    way = way_to(FAR, two.access)
    assert (True, False) == (mux.is_alive(way.socket), mux.is_alive(way.socket.with_name("nobody")))
    assert connections.connect(way, 5) is None
    connections.forget_if_dead(way.socket)
    assert way.socket.exists()
    assert 1 == connections.disconnect([way, Route("nobody.invalid", two.access)])
    assert not way.socket.exists()
    assert 0 == connections.disconnect([way])
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(way.socket))
    connections.forget_if_dead(way.socket)
    assert not way.socket.exists()
    assert not mux.terminate(way.socket)
    connections.forget_if_dead(way.socket)


def test_a_host_that_cannot_be_reached_has_ssh_s_reason(two: Cluster) -> None:
    """A name that does not resolve is no name; nothing stays of the attempt."""
    with Executor(two) as reach:
        run, connected = reach.run([HERE, FAR], "true"), reach.connect([FAR])

    assert (True, None) == (run[HERE].ok, run[HERE].failure)
    for failed in (run[FAR], connected[FAR]):
        assert failed.failure
        assert Reason.UNKNOWN_NAME is failed.failure.reason
    assert "Could not resolve hostname" in str(connections.connect(way_to(FAR, two.access), 5))
    assert not way_to(FAR, two.access).socket.exists()


# Results -------------------------------------------------------------------------------------------------------------


def result(host: Host = HERE, code: int | None = 0, **more: Any) -> Result:
    return Result(host=host, exit_code=code, seconds=1.23456, **more)


def test_a_result_s_record_has_all_of_it(tmp_path: Path) -> None:
    """With the reason as a word, and the files of what was too long; that is read from there."""
    (tmp_path / "out").write_bytes(b"all")
    more = {"stdout": Spilled(tmp_path / "out", 3, "x")}
    failed = result(FAR, None, stdout=b"a", stderr=b"\xff", failure=Failure(reason=Reason.BROKE_OFF), more=more)

    assert {
        "host": "far.invalid",
        "rank": 1,
        "exit_code": None,
        "seconds": 1.2346,
        "stdout": "a",
        "stderr": "\ufffd",
        "error": "the connection broke before the command ended",
        "reason": "broke off",
        "stdout_file": str(tmp_path / "out"),
    } == failed.record()
    assert (b"all", b"b") == (failed.whole_stdout, result(stdout=b"b").whole_stdout)
    assert (None, None) == (result().record()["reason"], result().record()["error"])


def test_output_goes_to_disk_past_its_limit(tmp_path: Path) -> None:
    """Of one stream or of all together; its beginning stays, its size and digest are the whole's."""
    memory = MemoryBudget(lambda: tmp_path, stream_bytes=10, total_bytes=15)
    first, second, third = (Capture(memory) for _ in range(3))
    first.add(b"x" * 10)
    assert 5 == memory.left
    second.add(b"y" * 5)
    assert 0 == memory.left
    third.add(b"z")
    assert (b"x" * 10, None) == first.taken()
    assert (b"y" * 5, None) == second.taken()
    third.add(b"more")
    kept, spilled = third.taken()
    assert b"z" == kept
    assert spilled
    assert (5, b"zmore") == (spilled.size, spilled.path.read_bytes())
    assert spilled.sha256 == hashlib.sha256(b"zmore").hexdigest()
    assert 0 == memory.left, "what is on disk takes none"
    alone = Capture(MemoryBudget(lambda: tmp_path, stream_bytes=10))
    alone.add(b"x" * 11)
    found = alone.taken()[1]
    assert found
    assert 11 == found.size


# What ssh is told ----------------------------------------------------------------------------------------------------


def test_a_way_goes_through_the_gateway_where_there_is_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The master is reached at the gateway's address; each way has a socket of its own, of a length that ssh can make."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    open_, closed = SshSettings(), SshSettings(gateway="gate")
    master, worker = Host(rank=0, address="10.0.0.1", slots=1), Host(rank=1, address="10.0.0.2", slots=1)

    assert [Route("10.0.0.1", open_), Route("10.0.0.2", open_)] == [way_to(h, open_) for h in (master, worker)]
    gate = Route("gate", closed)
    assert [gate, Route("10.0.0.2", closed, gate)] == [way_to(h, closed) for h in (master, worker)]
    ways = [
        Route("10.0.0.2", open_),
        Route("10.0.0.2", closed, gate),
        Route("10.0.0.2", SshSettings(user="x")),
        Route("10.0.0.2", SshSettings(port=23)),
        Route("10.0.0.2", SshSettings(key=Path("k"))),
        Route("10.0.0.2", SshSettings(known_hosts=Path("k"))),
        Route("10.0.0.2", open_, label="own"),
        Route("10.0.0.3", open_),
    ]
    assert len(ways) == len({w.socket for w in ways})
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/tmp")
    folder = len(str(Route("h", open_).socket.parent))
    for length, is_cut in ((84 - folder, False), (85 - folder, True)):
        socket_ = Route("h" * length, open_).socket
        assert ("h" * length != socket_.name, socket_.with_name(f"{socket_.name}.said")) == (
            is_cut,
            Route("h" * length, open_).said,
        )
    assert 16 == len(Route("h" * 90, open_).socket.name)


def proxy_of(way: Route, **how: Any) -> str:
    words = options.proxy_options(way, **how)
    return words[1].removeprefix("ProxyCommand=") if words else ""


def test_what_leads_to_a_host_without_an_open_port() -> None:
    """Nothing where ssh gets there itself; the gateway's connection; the AWS CLI, with a key lent before by EIC."""
    plain, gate = Route("10.0.0.1", SshSettings()), Route("gate", SshSettings(gateway="gate"))
    assert "" == proxy_of(plain) == proxy_of(gate)
    behind = proxy_of(Route("10.0.0.2", gate.access, gate))
    assert behind.startswith("ssh -o ControlPath=")
    assert behind.endswith("-W '[%h]:%p' gate")

    ssm, eic = (
        SshSettings(gateway="i-1", tunnel=Tunnel(mode=mode, region="eu-west-1", lends_key=mode == "eic"))
        for mode in ("ssm", "eic")
    )
    by_ssm, by_eic = (proxy_of(Route("i-1", access)) for access in (ssm, eic))
    assert by_ssm.endswith(
        "aws ssm start-session --target i-1 --document-name AWS-StartSSHSession "
        "--parameters portNumber=%p --region eu-west-1"
    )
    assert by_eic.endswith("aws ec2-instance-connect open-tunnel --instance-id i-1 --remote-port %p --region eu-west-1")
    assert '"needs": ["aws", "session-manager-plugin"]' in by_ssm
    assert '"needs": ["aws"]' in by_eic
    assert '"said"' in by_ssm
    assert '"said"' not in proxy_of(Route("i-1", ssm), for_a_person=True)
    assert '"lend"' not in by_ssm
    assert '"user": "%r"' in by_eic
    through = proxy_of(Route("10.0.0.2", eic, Route("i-1", eic)))
    assert through.endswith("-W '[%h]:%p' i-1")
    assert '"needs": []' in through
    assert [[], [], ["aws"]] == [options.needed_programs(mode) for mode in ("", "public", "eic")]


def test_fabric_s_connection_goes_the_cluster_s_way(tmp_path: Path) -> None:
    """Its user, port, key and gateway; only hosts that are known, nobody's agent beside a lent key."""
    from cluster.ssh.fabric_connection import Connection, _complaint, own_connection

    (tmp_path / "known").touch()
    access = SshSettings(user="u", port=2222, key=tmp_path / "key", known_hosts=tmp_path / "known", gateway="gate")
    made = own_connection(FAR, access, forward_agent=True)
    assert ("far.invalid", "u", 2222, True, 10) == (
        made.host,
        made.user,
        made.port,
        made.forward_agent,
        made.connect_timeout,
    )
    assert isinstance(made.gateway, Connection)
    assert ("gate", None) == (made.gateway.host, made.gateway.gateway)
    assert ([str(tmp_path / "key")], True, 10, 10) == tuple(
        made.connect_kwargs[n] for n in ("key_filename", "allow_agent", "banner_timeout", "auth_timeout")
    )
    lent = Connection(
        Route("i-1", SshSettings(user="u", tunnel=Tunnel(mode="eic", region="r", lends_key=True))), dial=lambda: None
    )
    assert (True, False) == (lent.gateway, lent.connect_kwargs["allow_agent"])
    assert "key_filename" not in own_connection(HERE, SshSettings(user="u")).connect_kwargs
    assert "RejectPolicy" == type(made.client._policy).__name__
    with pytest.raises(ClusterError, match=r"^far.invalid: its address does not resolve|^far.invalid: no ssh session"):
        own_connection(FAR, SshSettings(user="u")).open()

    import paramiko

    for error, words in (
        (TimeoutError(), "timed out"),
        (Exception("a timeout"), "timed out"),
        (paramiko.AuthenticationException("no"), "Permission denied"),
        (ConnectionRefusedError(), "Connection refused"),
        (paramiko.SSHException("x not found in known_hosts"), "Host key verification failed"),
        (ValueError("odd"), "odd"),
        (ValueError(), "ValueError"),
    ):
        assert words == _complaint(error)


def test_a_command_s_environment_is_quoted_and_checked() -> None:
    """As root only where that was asked for; what is no NAME=VALUE, or a secret, is refused."""
    text = with_environment("echo \"$A\" '$B'", {"A": "it's", "B": "x"})
    said = subprocess.run(["sh", "-c", text], capture_output=True, text=True).stdout
    assert ("\x1edlami-begun\n", "it's $B\n") == (said[:13], said[13:])
    assert "sudo" not in text
    assert "sudo -n" in with_environment("true", {}, sudo=True)
    assert {"A": "1", "_b2": "c=d"} == check_environment(["A=1", "_b2=c=d"])
    for bad in ("A", "2A=1", "A B=1", "=1"):
        with pytest.raises(ConfigError, match=r"is not NAME=VALUE$"):
            check_environment([bad])
    with pytest.raises(ConfigError, match=r"^DB_PASSWORD is called like a secret, which would be visible"):
        check_environment(["DB_PASSWORD=hunter"])


OWN_SETTINGS = """Host *
  RequestTTY force
  RemoteCommand bash -l
  SessionType none
  StdinNull yes
  ForkAfterAuthentication yes
  PermitLocalCommand yes
  LocalCommand echo hello
  LocalForward 18888 localhost:8888
  UseKeychain yes
"""


def test_a_host_s_own_settings_leave_ssh_one_command(tmp_path: Path) -> None:
    """What ssh itself says that it would do, on a host whose ~/.ssh/config is made for a person; also unknown words."""
    config = tmp_path / "config"
    config.write_text(OWN_SETTINGS)
    for words in (["ssh", *options.options_on_hosts()], options.agent_command(Route("10.0.0.1", SshSettings()))):
        done = subprocess.run([*words, "-F", str(config), "-G", "10.0.0.2"], capture_output=True, text=True)
        assert 0 == done.returncode, done.stderr
        said = dict(line.partition(" ")[::2] for line in done.stdout.splitlines())
        told = {name: said.get(name) for name in ("requesttty", "sessiontype", "stdinnull", "permitlocalcommand")}
        assert {"requesttty": "false", "sessiontype": "default", "stdinnull": "no", "permitlocalcommand": "no"} == told
        assert said.get("remotecommand", "none") == "none"
        assert "no" == said["forkafterauthentication"]


def test_a_connection_over_which_a_command_runs_is_left_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever process runs it: the kernel knows who holds a socket to it. An idle one is ended."""
    with tempfile.TemporaryDirectory(prefix="dl-", dir="/tmp") as folder, contextlib.ExitStack() as opened:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        ways = [Route("10.0.0.1", SshSettings()), Route("10.0.0.2", SshSettings())]
        listening = []
        for way in ways:
            way.socket.parent.mkdir(mode=0o700, exist_ok=True)
            one = opened.enter_context(socket.socket(socket.AF_UNIX))
            one.bind(str(way.socket))
            one.listen()
            listening.append(one)
        assert [False, False] == [mux.is_in_use(way.socket) for way in ways]
        client = opened.enter_context(socket.socket(socket.AF_UNIX))
        client.connect(str(ways[1].socket))
        server = opened.enter_context(listening[1].accept()[0])
        assert [False, True] == [mux.is_in_use(way.socket) for way in ways]
        monkeypatch.setattr(mux, "terminate", lambda path: True)
        assert (1, ways[1:]) == connections.disconnect_idle(ways)
        assert [False, True] == [way.socket.exists() for way in ways]
        client.close()
        server.close()
        assert not mux.is_in_use(ways[1].socket)


@pytest.mark.parametrize("closed", ["2>&-", ">&- 2>&-", "<&- 2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_no_trouble(closed: str, tmp_path: Path) -> None:
    """No other file gets their numbers, and what is printed there is dropped."""
    program = (
        "import os, sys; from dlami.closed_streams import open_closed_streams as o; o(); "
        "print('lost', file=sys.stderr, flush=True); f = open(sys.argv[1], 'w'); f.write(str(f.fileno() > 2)); print('out')"
    )
    words = ["sh", "-c", f'"$0" -c "$1" "$2" {closed}', sys.executable, program, str(tmp_path / "told")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)

    assert (0, "True") == (done.returncode, (tmp_path / "told").read_text())
    assert ("" if ">&- 2" in closed else "out\n") == done.stdout
