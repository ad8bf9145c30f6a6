"""Reader of this host's GPUs by one `nvidia-smi` process in the background; if it hangs, nothing else waits."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
import time
from typing import Any

QUERY = "index,utilization.gpu,memory.used,memory.total,temperature.gpu,power.draw,power.limit"
_AGAIN_S = 30.0  # delay before a restart if it reported no GPU, for example without a driver
_SOON_S = 1.0  # the same if it had reported GPUs, for example when another one is lost
_COMPLAINT_S = 10.0  # an error is kept for this time while lines of other GPUs arrive
_TOOLS = "/usr/bin:/usr/local/bin:/usr/local/cuda/bin:/bin"


class Gpus:
    """Background `nvidia-smi` that prints every second; starting one per query would cost more than the query."""

    def __init__(self) -> None:
        self._tool = shutil.which("nvidia-smi", path=os.environ.get("PATH", "") + ":" + _TOOLS)
        self._lock = threading.Lock()
        self._rows: dict[str, str] = {}  # index -> its newest line
        self._at: float | None = None
        self._error = ""
        self._error_at = 0.0
        self._process: subprocess.Popen[str] | None = None
        if self._tool:
            threading.Thread(target=self._listen, daemon=True).start()

    def newest(self) -> dict[str, Any] | None:
        """Return the newest lines, their age in seconds and the last error; None if the tool is missing."""
        if not self._tool:
            return None
        with self._lock:
            age = None if self._at is None else time.monotonic() - self._at
            return {"lines": list(self._rows.values()), "age_s": age, "error": self._error}

    def close(self) -> None:
        """Kill the process."""
        if self._process:
            with contextlib.suppress(OSError):
                self._process.kill()

    def _listen(self) -> None:
        while True:
            told = False
            try:
                told = self._read_to_its_end()
            except OSError as e:
                self._complain(f"nvidia-smi: {e.strerror}")
            time.sleep(_SOON_S if told else _AGAIN_S)

    def _read_to_its_end(self) -> bool:
        """Read the process's lines until it ends.

        Return True if it reported a GPU; those lines stay until newer ones come.
        """
        assert self._tool
        words = [self._tool, f"--query-gpu={QUERY}", "--format=csv,noheader,nounits", "--loop=1"]
        nothing = subprocess.DEVNULL
        self._process = subprocess.Popen(words, stdin=nothing, stdout=subprocess.PIPE, stderr=nothing, text=True)
        assert self._process.stdout
        began = self._at = time.monotonic()
        told: set[str] = set()
        for line in self._process.stdout:
            said = line.strip()[:200]
            index = said.partition(",")[0]
            with self._lock:
                now = time.monotonic()
                if index.isdigit():
                    told.add(index)
                    self._rows[index], self._at = said, now
                    self._error = self._error if now - self._error_at < _COMPLAINT_S else ""
                elif said:
                    self._error, self._error_at = said, now
        code = self._process.wait()
        with self._lock:
            self._rows = {index: row for index, row in self._rows.items() if index in told}
            self._at = self._at if told else None
            fresh = self._error if self._error_at >= began else ""
            self._error, self._error_at = fresh or f"nvidia-smi exited {code}", time.monotonic()
        return bool(told)

    def _complain(self, what: str) -> None:
        with self._lock:
            self._error, self._error_at = what, time.monotonic()
