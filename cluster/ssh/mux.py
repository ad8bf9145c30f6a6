"""Commands over an open SSH connection: a client of OpenSSH's multiplexing protocol that needs no ssh process.

An `ssh -M` listens on a Unix socket. A client that connects to it may start commands over its connection. It hands over
the command's stdin, stdout and stderr as file descriptors. Source: PROTOCOL.mux of OpenSSH 9.2 (version 4).
"""

import array
import contextlib
import os
import socket
import struct
from pathlib import Path

_VERSION = 4
_HELLO = 0x00000001
_NEW_SESSION, _ALIVE_CHECK, _TERMINATE, _NEW_FORWARD = 0x10000002, 0x10000004, 0x10000005, 0x10000008
_OK, _DENIED, _FAILURE, _EXIT, _ALIVE, _OPENED = (
    0x80000001,
    0x80000002,
    0x80000003,
    0x80000004,
    0x80000005,
    0x80000006,
)
_CONNECTED = "03"  # state of a socket in /proc/net/unix
_NO_ESCAPE = 0xFFFFFFFF
_REQUEST = 1  # one request per connection, so one number does


class Channel:
    """Remote command. Its output is read from `stdout` and `stderr`, its exit code from `control`.

    Raises OSError if nothing listens at the socket any more.
    """

    def __init__(self, path: Path, command: str, stdin: int, timeout_s: float) -> None:
        self.is_open = False  # the remote shell has been started
        self.refused: str | None = None  # why it never will be
        self.exit_code: int | None = None
        self._received = bytearray()
        self.control = _connected(path, timeout_s)
        try:
            self.stdout, out = os.pipe()
            self.stderr, err = os.pipe()
        except OSError:
            self.control.close()
            raise
        try:
            self.control.sendall(hello() + new_session(command))
            for fd in (stdin, out, err):
                _send_fd(self.control, fd)
        except OSError:
            self.close()
            raise
        finally:
            os.close(out)
            os.close(err)
        self.control.setblocking(False)

    def read_control(self) -> bool:
        """Read the connection's messages. Return False once it sends no more."""
        try:
            data = self.control.recv(4096)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._received += data
        for kind, body in messages(self._received):
            self._heard(kind, body)
        return bool(data)

    def close(self) -> None:
        """Give the command up. This closes its streams on the host, too."""
        self.control.close()
        for fd in (self.stdout, self.stderr):
            with contextlib.suppress(OSError):
                os.close(fd)

    def _heard(self, kind: int, body: bytes) -> None:
        if kind == _OPENED:
            self.is_open = True
        elif kind == _EXIT:
            self.exit_code = struct.unpack_from(">I", body, 4)[0]
        elif kind in (_DENIED, _FAILURE):
            self.refused = _string(body, 4).decode(errors="replace")


class Forwarded(socket.socket):
    """Socket to a port of the host at the other end of an open connection, or of one that this host reaches.

    Raises OSError if nothing listens at the connection's control socket, or if the host cannot reach the port.
    """

    def __init__(self, path: Path, address: str, port: int, timeout_s: float) -> None:
        here, there = socket.socketpair()
        super().__init__(fileno=here.detach())
        self._control: socket.socket | None = None
        try:
            self._control = _connected(path, timeout_s)  # the forwarding lasts as long as this is open
            self._control.sendall(hello() + new_forward(address, port))
            for _ in ("its input", "its output"):
                _send_fd(self._control, there.fileno())
            self._wait_until_open()
        except OSError:
            self.close()
            raise
        finally:
            there.close()

    def close(self) -> None:
        """Close the socket, and its forwarding on the connection."""
        super().close()
        if self._control:
            self._control.close()

    def _wait_until_open(self) -> None:
        assert self._control
        received = bytearray()
        while data := self._control.recv(4096):
            received += data
            for kind, body in messages(received):
                if kind == _OPENED:
                    return
                if kind in (_DENIED, _FAILURE):
                    raise ConnectionRefusedError(_string(body, 4).decode(errors="replace"))
        raise ConnectionResetError("the connection to the host ended")


def hello() -> bytes:
    """Return the first message of either side."""
    return _packed(struct.pack(">II", _HELLO, _VERSION))


def new_session(command: str) -> bytes:
    """Return the request to run a shell command, without terminal, X11 or agent. Three descriptors must follow."""
    flags = (0, 0, 0, 0)  # terminal, X11, agent, subsystem
    return _packed(
        struct.pack(">II", _NEW_SESSION, _REQUEST)
        + _text("")
        + struct.pack(">IIIII", *flags, _NO_ESCAPE)
        + _text("")
        + _text(command)
    )


def new_forward(address: str, port: int) -> bytes:
    """Return the request for a connection to a port, as the other end names it. Two descriptors must follow."""
    head = struct.pack(">II", _NEW_FORWARD, _REQUEST)
    return _packed(head + _text("") + _text(address) + struct.pack(">I", port))


def messages(received: bytearray) -> list[tuple[int, bytes]]:
    """Remove the complete messages from what was received. Return each as its kind and body."""
    found = []
    while len(received) >= 8:
        length = struct.unpack_from(">I", received)[0]
        if len(received) < 4 + length:
            break
        found.append((struct.unpack_from(">I", received, 4)[0], bytes(received[8 : 4 + length])))
        del received[: 4 + length]
    return found


def is_alive(path: Path, timeout_s: float = 2.0) -> bool:
    """Return True if an ssh answers at this control socket."""
    return _ask(path, _ALIVE_CHECK, timeout_s) == _ALIVE


def is_in_use(path: Path) -> bool:
    """Return True if a command runs over the connection.

    The process that started the command keeps a socket to the connection, which /proc lists.
    """
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/unix").read_text(errors="replace").splitlines()[1:]:
            fields = line.split(maxsplit=7)
            if len(fields) == 8 and fields[7] == str(path) and fields[5] == _CONNECTED:
                return True
    return False


def terminate(path: Path, timeout_s: float = 2.0) -> bool:
    """Ask the ssh at this control socket to end its connection. Return True if there was one."""
    return _ask(path, _TERMINATE, timeout_s) in (_OK, None)


def _ask(path: Path, request: int, timeout_s: float) -> int | None:
    """Return the kind of the answer to a request. Return None if ssh hung up instead, 0 if no ssh answered."""
    try:
        control = _connected(path, timeout_s)
    except OSError:
        return 0
    received = bytearray()
    with control:
        try:
            control.sendall(hello() + _packed(struct.pack(">II", request, _REQUEST)))
            while data := control.recv(4096):
                received += data
                for kind, _ in messages(received):
                    if kind != _HELLO:
                        return kind
        except OSError:
            return 0
    return None


def _connected(path: Path, timeout_s: float) -> socket.socket:
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    control.settimeout(timeout_s)
    try:
        control.connect(str(path))
    except OSError:
        control.close()
        raise
    return control


def _send_fd(control: socket.socket, fd: int) -> None:
    control.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])


def _packed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def _text(text: str) -> bytes:
    return _packed(text.encode(errors="surrogateescape"))


def _string(body: bytes, at: int) -> bytes:
    length = struct.unpack_from(">I", body, at)[0]
    return body[at + 4 : at + 4 + length]
