"""One host of a ring of plain sockets: every part goes to the next, one comes from the last, then the following part.

What a ring all-reduce of as many bytes sends and waits for, without its additions. Before each there is silence for a
second, as while a step is computed: TCP starts slowly again after that. The first host prints the seconds of each.
"""

import argparse
import socket
import sys
import threading
import time

CONNECT_S, PAUSE_S = 20.0, 1.0


def main() -> None:
    """Once round the ring a byte says that everybody is there; then the parts."""
    parser = argparse.ArgumentParser(description="One host of a ring of plain sockets.")
    parser.add_argument("port", type=int, help="to listen at")
    parser.add_argument("following", help="ADDRESS:PORT of the next host")
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--hosts", type=int, required=True)
    parser.add_argument("--bytes", type=int, required=True, help="to be summed by the all-reduce")
    parser.add_argument("--times", type=int, required=True)
    a = parser.parse_args()
    with socket.create_server(("", a.port)) as server:
        following = _connected(*a.following.rsplit(":", 1))
        before = server.accept()[0]
    part = bytes(a.bytes // a.hosts)
    for _ in range(a.times):
        if a.first:
            time.sleep(PAUSE_S)
            following.sendall(b"!")
        _receive(before, 1)
        if not a.first:
            following.sendall(b"!")
        began = time.perf_counter()
        for _ in range(2 * (a.hosts - 1)):
            sending = threading.Thread(target=following.sendall, args=(part,))
            sending.start()
            _receive(before, len(part))
            sending.join()
        if a.first:
            print(time.perf_counter() - began, flush=True)


def _connected(address: str, port: str) -> socket.socket:
    until = time.monotonic() + CONNECT_S
    while True:
        try:
            return socket.create_connection((address, int(port)))
        except ConnectionRefusedError:
            if time.monotonic() > until:
                sys.exit(f"{address}:{port}: nobody listens after {CONNECT_S:.0f} s")
            time.sleep(0.05)


def _receive(before: socket.socket, left: int) -> None:
    while left:
        data = before.recv(min(left, 1 << 20))
        if not data:
            sys.exit("the host before is gone")
        left -= len(data)


if __name__ == "__main__":
    main()
