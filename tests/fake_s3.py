"""A fake S3 in a process of its own: nothing that a test does in pytest's, with threads, forks or patches, holds it up."""

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from queue import SimpleQueue


@contextlib.contextmanager
def serving(address: str = "127.0.0.1") -> Iterator[str]:
    """Its URL, until the block is left."""
    words = [sys.executable, "-m", "moto.server", "-H", address, "-p", "0"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as server:
        urls: SimpleQueue[str] = SimpleQueue()
        listening = threading.Thread(target=_listen, args=(server, urls))
        listening.start()
        try:
            url = urls.get()
            assert url, "it ended before it served"
            yield url
        finally:
            server.kill()
            listening.join()


def _listen(server: "subprocess.Popen[str]", urls: "SimpleQueue[str]") -> None:
    """To its end: a pipe that nobody reads fills up."""
    for line in server.stderr or ():
        if "Running on http://" in line:
            urls.put(line.split()[-1])
    urls.put("")
