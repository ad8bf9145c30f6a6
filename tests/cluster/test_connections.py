"""Connections that stay open: shared by tasks, private, made anew when they have died, and ended when asked."""

import contextlib
import itertools
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import ConfigError
from cluster.hosts import Host
from cluster.inventory import ROOT, Cluster, SshSettings
from cluster.ssh import connections, mux
from cluster.ssh.failure import Reason, failure_to_connect, is_transient
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from cluster.ssh.options import Route, agent_command, connect_command, options, sockets_folder, way_to
from lab import lab as labs
from lab.record import Lab
from tests.conftest import PATIENCE_S, wait_for


def sockets(cluster: Cluster) -> Any:
    return [way_to(h, cluster.access).socket for h in cluster.hosts]


def sshds(reach: Executor, host: Any) -> set[str]:
    """Processes of connections that sshd holds on a host; those of other tests may end at any time."""
    found = reach.run([host], "ps -e -o pid=,args= | grep -E '^ *[0-9]+ sshd: root'").check()[host].text
    return {line.split()[0] for line in found.splitlines()}


def test_a_second_fan_out_makes_no_connection(cluster: Cluster, reach: Executor) -> None:
    """Neither in this process nor in another one."""
    reach.run(cluster.hosts, "true").check()
    before = sshds(reach, cluster.master)
    with Executor(cluster) as another:
        another.run(cluster.hosts, "true").check()
    subprocess.run(
        [sys.executable, "-m", "invoke", "run", "--", "true"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        env={**os.environ, "CLUSTER": f"lab:{cluster.name}"},
        timeout=PATIENCE_S,
    )

    assert set() == sshds(reach, cluster.master) - before


def test_a_folder_that_others_may_enter_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody may have put it there to get our connections."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / f"dlami-{os.getuid()}").mkdir(mode=0o755)

    with pytest.raises(ConfigError, match="is not a folder of this user alone"):
        sockets_folder()


def test_a_connection_that_died_unnoticed_is_made_again(lab: Lab, cluster: Cluster, reach: Executor) -> None:
    """The host was rebooted between two tasks: the socket is there, the host knows nothing of it."""
    host, victim = cluster.hosts[1], lab.hosts[1]
    reach.run([host], "true").check()
    labs.crash(lab, victim)
    labs.heal(lab, [victim])

    assert f"{lab.name}-1\n" == reach.run([host], "hostname", limits=Limits(connect_s=60)).check()[host].text


def test_an_ssh_that_was_killed_is_replaced(cluster: Cluster, reach: Executor) -> None:
    """Its socket stays behind and must not be in the way."""
    host = cluster.hosts[2]
    reach.run([host], "true").check()
    socket = sockets(cluster)[2]
    found = subprocess.run(["pgrep", "-f", f"ControlPath={socket}"], capture_output=True, text=True, check=True)
    for pid in found.stdout.split():
        os.kill(int(pid), signal.SIGKILL)
    wait_for(lambda: not mux.is_alive(socket), 60, "ssh is gone")

    assert socket.exists()
    assert not reach.run([host], "true").failed


def test_a_fan_out_does_not_keep_its_caller_s_pipes_open(cluster: Cluster) -> None:
    """`inv run | cat` ends when inv ends: the ssh in the background holds neither stdout nor stderr."""
    connections.disconnect()
    began = time.monotonic()
    done = subprocess.run(
        'exec 2>&1; "$PYTHON" -m invoke run -- hostname | cat',
        shell=True,
        cwd=ROOT,
        timeout=PATIENCE_S,
        capture_output=True,
        text=True,
        env={**os.environ, "CLUSTER": f"lab:{cluster.name}", "PYTHON": sys.executable},
    )

    assert 4 == done.stdout.count(cluster.name)
    assert time.monotonic() - began < 300, "it waited for the connections' lifetime"


def test_a_gateway_leads_to_the_others(cluster: Cluster) -> None:
    """The master by its own address, the workers through it, over the master's connection."""
    behind = Cluster(
        name="x",
        hosts=cluster.hosts,
        folder=ROOT,
        shared="/shared",
        project=str(ROOT),
        access=SshSettings(
            user="root", key=cluster.access.key, known_hosts=cluster.access.known_hosts, gateway=cluster.master.address
        ),
    )
    with Executor(behind) as reach:
        answers = reach.run(cluster.hosts, "hostname; echo $SSH_CONNECTION | cut -d' ' -f1").check()

    assert [f"{cluster.name}-{n}" for n in range(4)] == [r.text.split()[0] for r in answers.values()]
    assert {cluster.master.address} == {answers[h].text.split()[1] for h in cluster.hosts[1:]}


def test_a_gateway_that_is_down_is_the_reason_for_all(lab: Lab, cluster: Cluster, tmp_path: Path) -> None:
    """Each host behind it says so, and none is tried without it."""
    connections.disconnect()
    labs.crash(lab, lab.hosts[3])
    behind = Cluster(
        name="x",
        hosts=cluster.hosts,
        folder=ROOT,
        shared="/shared",
        project=str(ROOT),
        access=SshSettings(
            user="root",
            key=cluster.access.key,
            known_hosts=cluster.access.known_hosts,
            gateway=cluster.hosts[3].address,
        ),
    )
    with Executor(behind) as reach:
        results = reach.run(cluster.hosts[1:3], "hostname", limits=Limits(connect_s=20))

    down = (Reason.NO_ROUTE, Reason.NO_SSH_IN_TIME)
    assert all(r.failure and r.failure.reason in down for r in results.values())
    assert all(r.problem.startswith(f"its gateway {cluster.hosts[3].address}: no ") for r in results.values())


def test_a_host_that_allows_few_sessions_is_asked_again(lab: Lab, cluster: Cluster, reach: Executor) -> None:
    """MaxSessions 1 of its sshd: the second command waits for the first one's end."""
    host = cluster.hosts[1]
    reach.run([host], "sed -i 's/MaxSessions .*/MaxSessions 1/' /etc/ssh/lab_sshd_config && pkill -HUP -o sshd").check()
    connections.disconnect([way_to(host, cluster.access)])
    wait_for(lambda: dict(labs.statuses(lab))[lab.hosts[1]] == "up", 60, "sshd is back")
    slow = subprocess.Popen(
        [sys.executable, "-m", "invoke", "run", "--hosts", "1", "--", "echo in; sleep 2"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        env={**os.environ, "CLUSTER": f"lab:{lab.name}"},
    )
    wait_for(lambda: mux.is_alive(sockets(cluster)[1]), 60, "the first is connected")
    second = reach.run([host], "echo second", limits=Limits(connect_s=60))
    slow.communicate(timeout=PATIENCE_S)
    reach.run(
        [host], "sed -i 's/MaxSessions .*/MaxSessions 100/' /etc/ssh/lab_sshd_config && pkill -HUP -o sshd"
    ).check()
    connections.disconnect([way_to(host, cluster.access)])

    assert "second\n" == second.check()[host].text


@pytest.mark.seconds
def test_a_host_that_turned_us_away_is_told_of_as_that(tmp_path: Path) -> None:
    """Also where the time is over in the middle of one more try, which is not answered."""
    came: list[socket.socket] = []

    def turn_away(door: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                came.append(door.accept()[0])
                if len(came) < 3:
                    came[-1].close()

    with socket.create_server(("127.0.0.9", 0)) as door:
        threading.Thread(target=turn_away, args=(door,), daemon=True).start()
        host = Host(rank=0, address=door.getsockname()[0], slots=1)
        access = SshSettings(port=door.getsockname()[1], known_hosts=tmp_path / "known")
        here = Cluster(name="here", hosts=(host,), folder=tmp_path, shared="", project="", access=access)
        with Executor(here) as reach:
            result = reach.run([host], "true", limits=Limits(connect_s=5))[host]
        door.shutdown(socket.SHUT_RDWR)

    assert 3 <= len(came), "the third try was on its way"
    assert result.failure
    assert Reason.TURNED_AWAY is result.failure.reason


@pytest.mark.parametrize(("refusals", "reason"), [(0, Reason.NO_SSH_IN_TIME), (1, Reason.TURNED_AWAY)])
def test_a_connection_that_refuses_a_session_serves_those_that_it_has(
    tmp_path: Path, refusals: int, reason: Reason
) -> None:
    """It is closed only where it answers nothing at all; one more session is not answered in either case."""
    host = Host(rank=0, address="127.0.0.9", slots=1)
    here = Cluster(
        name="here", hosts=(host,), folder=tmp_path, shared="", project="", access=SshSettings(key=tmp_path / "key")
    )
    path = way_to(host, here.access).socket
    path.parent.mkdir(mode=0o700, parents=True)
    asked: list[int] = []

    def serve(door: socket.socket) -> None:
        open_ones = []
        with contextlib.suppress(OSError):
            while True:
                open_ones.append(door.accept()[0])
                received = bytearray()
                while not (found := [k for k, _ in mux.messages(received) if k != mux._HELLO]):
                    received += open_ones[-1].recv(4096)
                asked.extend(found)
                if found == [mux._TERMINATE]:
                    open_ones[-1].close()
                elif len(asked) <= refusals:
                    refusal = struct.pack(">II", mux._FAILURE, 1) + mux._text("Session open refused by peer")
                    open_ones[-1].sendall(mux.hello() + mux._packed(refusal))

    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(path))
        door.listen()
        threading.Thread(target=serve, args=(door,), daemon=True).start()
        with Executor(here) as reach:
            result = reach.run([host], "true", limits=Limits(connect_s=2))[host]
        is_there = path.exists()
        door.shutdown(socket.SHUT_RDWR)
    path.unlink(missing_ok=True)

    assert result.failure
    assert reason is result.failure.reason
    assert [mux._NEW_SESSION] * (refusals + 1) == asked[: refusals + 1]
    assert (bool(refusals), not refusals) == (is_there, mux._TERMINATE in asked)


def test_the_request_is_what_the_protocol_says() -> None:
    """PROTOCOL.mux, section "Opening a session"; lengths and order of OpenSSH 9.2."""
    body = mux.new_session("hostname")

    assert len(body) - 4 == struct.unpack_from(">I", body)[0]
    assert (0x10000002, 1, 0, 0, 0, 0, 0, 0xFFFFFFFF, 0, 8) == struct.unpack_from(">10I", body, 4)
    assert body.endswith(b"hostname")
    assert struct.pack(">III", 8, 1, 4) == mux.hello()


def test_messages_are_taken_out_whole() -> None:
    """However the stream is cut."""
    stream, received, found = mux.hello() + mux.hello(), bytearray(), []
    for n in range(len(stream)):
        received += stream[n : n + 1]
        found += mux.messages(received)

    assert [(1, struct.pack(">I", 4))] * 2 == found
    assert b"" == bytes(received)


@pytest.mark.parametrize(
    ("said", "reason", "message"),
    [
        ("ssh: connect to host 10.0.0.1 port 22: Connection refused", Reason.REFUSED, "it refuses connections"),
        ("ssh: connect to host 10.0.0.1 port 22: Connection timed out", Reason.NO_SSH_IN_TIME, "no ssh within 5 s"),
        ("ssh: connect to host 10.0.0.1 port 22: No route to host", Reason.NO_ROUTE, "no connection: no route to host"),
        ("ssh: Could not resolve hostname nope: Name or service not known", Reason.UNKNOWN_NAME, "does not resolve"),
        ("root@10.0.0.1: Permission denied (publickey).", Reason.REFUSED_KEY, "refused our SSH key (user ubuntu)"),
        (
            "No ED25519 host key is known for x and you have requested strict checking.",
            Reason.UNKNOWN_HOST,
            "is not known here",
        ),
        ("@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @", Reason.CHANGED_HOST, "is not the one we know"),
        (
            "Unable to negotiate with x port 22: no matching host key type found.",
            Reason.NO_SESSION,
            "no ssh session: Unable to negotiate",
        ),
        ("", Reason.NO_SESSION, "no ssh session: ssh ended without a word"),
    ],
)
def test_ssh_s_complaints_are_told_apart(said: Any, reason: Any, message: Any) -> None:
    """A reason for the code, and for the reader what it means and what to do."""
    failure = failure_to_connect(said, SshSettings(user="ubuntu"), 5)

    assert reason is failure.reason
    assert message in str(failure)
    assert not is_transient(said)


def test_a_key_that_is_not_there_is_not_called_refused(tmp_path: Path) -> None:
    """`[ssh] key` names a file that is missing: nothing was shown to the host."""
    said = str(failure_to_connect("Permission denied (publickey).", SshSettings(key=tmp_path / "no-key"), 5))

    assert f"[ssh] key in cluster.toml names {tmp_path / 'no-key'}, which is not there" in said
    assert "refused" not in said


def given_to_ssh(words: Any) -> Any:
    """The options of a command line, as ssh would take them: the first of a name counts."""
    given = {}
    for flag, word in itertools.pairwise(words):
        if flag == "-o":
            given.setdefault(*word.split("=", 1))
    return given


def test_no_ssh_of_ours_forwards_an_agent_or_trusts_a_stranger(tmp_path: Path) -> None:
    """A host that was taken over gets neither our keys nor a second try under another name."""
    access = SshSettings(user="ubuntu", port=2222, key=tmp_path / "it's a key", known_hosts=tmp_path / "known")
    way = Route("10.0.0.1", access)
    for words in (options(access), connect_command(way, 5), agent_command(way)):
        given = given_to_ssh(words)
        assert ("no", "no", "yes") == (given["ForwardAgent"], given["ForwardX11"], given["ClearAllForwardings"])
        assert ("yes", "yes") == (given["StrictHostKeyChecking"], given["BatchMode"])
        assert ("yes", f'"{tmp_path}/it\'s a key"') == (given["IdentitiesOnly"], given["IdentityFile"])
        assert (f'"{tmp_path}/known"', "/dev/null") == (given["UserKnownHostsFile"], given["GlobalKnownHostsFile"])


def test_a_folder_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever made it before us could put sockets of his into it; and nobody is stopped by its name."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / f"dlami-{os.getuid()}").mkdir(mode=0o700)
    sockets_folder()
    if os.geteuid() == 0:
        os.chown(tmp_path / f"dlami-{os.getuid()}", 12345, 12345)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 0)
        (tmp_path / "dlami-0").mkdir(mode=0o700)
        return

    assert not sockets_folder().is_relative_to(tmp_path)


def test_a_link_in_place_of_the_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may lead anywhere tomorrow."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / f"dlami-{os.getuid()}").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(ConfigError, match="is not a folder of this user alone"):
        sockets_folder()
