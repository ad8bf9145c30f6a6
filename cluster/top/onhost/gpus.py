"""What `nvidia-smi` says of this host's GPUs, again and again: one that hangs holds up nothing else."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
import time
from typing import Any

QUERY = "index,utilization.gpu,memory.used,memory.total,temperature.gpu,power.draw,power.limit"
_AGAIN_S = 30.0  # after one that ended by itself: no driver, say
_TOOLS = "/usr/bin:/usr/local/bin:/usr/local/cuda/bin:/bin"


class Gpus:
    """One `nvidia-smi` that speaks every second; a start of it for each look would cost more than the looks."""

    def __init__(self) -> None:
        self._tool = shutil.which("nvidia-smi", path=os.environ.get("PATH", "") + ":" + _TOOLS)
        self._lock = threading.Lock()
        self._rows: dict[str, str] = {}  # index -> its newest line
        self._at: float | None = None
        self._error = ""
        self._process: subprocess.Popen[str] | None = None
        if self._tool:
            threading.Thread(target=self._listen, daemon=True).start()

    def newest(self) -> dict[str, Any] | None:
        """Its newest lines, how old they are in seconds, and its complaint; None where there is no such tool."""
        if not self._tool:
            return None
        with self._lock:
            age = None if self._at is None else time.monotonic() - self._at
            return {"lines": list(self._rows.values()), "age_s": age, "error": self._error}

    def close(self) -> None:
        """Let it end."""
        if self._process:
            with contextlib.suppress(OSError):
                self._process.kill()

    def _listen(self) -> None:
        while True:
            try:
                self._read_to_its_end()
            except OSError as e:
                self._complain(f"nvidia-smi: {e.strerror}")
            time.sleep(_AGAIN_S)

    def _read_to_its_end(self) -> None:
        assert self._tool
        words = [self._tool, f"--query-gpu={QUERY}", "--format=csv,noheader,nounits", "--loop=1"]
        nothing = subprocess.DEVNULL
        self._process = subprocess.Popen(words, stdin=nothing, stdout=subprocess.PIPE, stderr=nothing, text=True)
        assert self._process.stdout
        self._at = time.monotonic()
        for line in self._process.stdout:
            said = line.strip()[:200]
            index = said.partition(",")[0]
            with self._lock:
                if index.isdigit():
                    self._rows[index], self._at, self._error = said, time.monotonic(), ""
                elif said:
                    self._error = said
        code = self._process.wait()
        with self._lock:
            self._rows, self._at = {}, None
            self._error = self._error or f"nvidia-smi exited {code}"

    def _complain(self, what: str) -> None:
        with self._lock:
            self._error = what
