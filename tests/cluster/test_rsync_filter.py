"""The program between rsync and its ssh: output before the mark is dropped, output after it arrives whole."""

import os
import subprocess
import sys
import time

from cluster.ssh import rsync_filter


def test_all_output_arrives_through_a_pipe_that_does_not_block() -> None:
    """rsync sets its end so, and is slower than the host that sends."""
    data = bytes(range(256)) * 12_000
    script = f"echo noise; {rsync_filter.PRINT_MARK}; head -c {len(data)} /proc/self/fd/0"
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    sending, given = os.pipe()
    passing = subprocess.Popen(
        [sys.executable, rsync_filter.__file__, "bash", "-c", script], stdin=sending, stdout=writing
    )
    os.close(writing)
    os.close(sending)
    feeding = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdout.buffer.write(bytes(range(256)) * 12_000)"], stdout=given
    )
    os.close(given)
    arrived = b""
    while more := os.read(reading, 4096):
        arrived += more
        time.sleep(0.0002)  # a slow reader: the pipe is full most of the time
    os.close(reading)

    assert (passing.wait(), feeding.wait()) == (0, 0)
    assert arrived == data
