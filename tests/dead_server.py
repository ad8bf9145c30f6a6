"""A FUSE file system whose server never answers: whoever touches it waits, as on an NFS server that went away."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import PATIENCE_S

# Run by /usr/bin/python3 on a lab host. It mounts over /shared; ending the process whose number is in /run/dead-server
# and `umount -l /shared` take it away.
PROGRAM = """
import ctypes, os, time
fuse = os.open("/dev/fuse", os.O_RDWR)
libc = ctypes.CDLL(None, use_errno=True)
options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0".encode()
assert libc.mount(b"dead", b"/shared", b"fuse", 0, options) == 0, os.strerror(ctypes.get_errno())
os.set_inheritable(fuse, True)
print("mounted", flush=True)
if os.fork() == 0:
    os.setsid()
    open("/run/dead-server", "w").write(str(os.getpid()))
    for fd in (0, 1, 2):
        os.close(fd)
    time.sleep(100000)
"""


@contextlib.contextmanager
def silent(folder: Path, beside: Path) -> Iterator[None]:
    """A folder of this machine that does not answer meanwhile. beside: a folder for what has to be known of it."""
    number = beside / "dead-server"
    program = PROGRAM.replace("/run/dead-server", str(number)).replace("/shared", str(folder))
    subprocess.run(["/usr/bin/python3", "-c", program], check=True, timeout=PATIENCE_S)
    try:
        yield
    finally:
        subprocess.run(["sh", "-c", f"kill -9 $(cat '{number}'); umount -l '{folder}'"], check=True, timeout=PATIENCE_S)
