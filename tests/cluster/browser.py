"""A page in headless Chromium, driven over its debugging pipe: what it asks for, what it says, what keys do."""

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PATIENCE_S

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
LIMIT_S = PATIENCE_S


class Browser:
    """One tab."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers, self._rest = commands, answers, b""
        self._number, self._session = 0, ""
        self.requests: list[str] = []
        self.complaints: list[str] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log", "Accessibility"):
            self.ask(f"{domain}.enable")

    def open(self, file: Path, *, width: int = 1000, dark: bool = False) -> None:
        """Show a file, and wait until it is loaded."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 500)
        scheme = "dark" if dark else "light"
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.ask("Page.navigate", url=file.as_uri())
        deadline = time.monotonic() + LIMIT_S
        while self.value("document.readyState + location.protocol") != "completefile:":
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def value(self, expression: str) -> Any:
        """What an expression is on the page."""
        return self.ask("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def press(self, key: str) -> None:
        """A key, on what has the focus."""
        for kind in ("keyDown", "keyUp"):
            self.ask(
                "Input.dispatchKeyEvent", type=kind, key=key, text=key if kind == "keyDown" and len(key) == 1 else ""
            )

    def drag(self, begin: tuple[float, float], end: tuple[float, float]) -> None:
        """The mouse, from one place to another."""
        for kind, (x, y), buttons in (("mousePressed", begin, 1), ("mouseMoved", end, 1), ("mouseReleased", end, 0)):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=buttons, clickCount=1)

    def ask(self, method: str, **given: Any) -> dict[str, Any]:
        """The answer to one command; what comes meanwhile is kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": given}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            heard = self._heard()
            if heard.get("id") == self._number:
                assert "error" not in heard, heard
                return dict(heard["result"])
            self._keep(heard)

    def _heard(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = os.read(self._answers, 1 << 16)
            assert data, "the browser is gone"
            self._rest += data
        one, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(one))

    def _keep(self, heard: dict[str, Any]) -> None:
        given = heard.get("params", {})
        if heard.get("method") == "Network.requestWillBeSent":
            self.requests.append(given["request"]["url"])
        elif heard.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
            self.complaints.append(json.dumps(given)[:500])


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A browser for a test; it is skipped where there is none."""
    if not CHROMIUM:
        pytest.skip("there is no Chromium: 'make chromium' as root gets the distribution's")
    to_browser, commands = os.pipe()
    answers, from_browser = os.pipe()
    with tempfile.TemporaryDirectory(prefix="dlami-chromium-") as profile:
        words = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        words += ["--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe"]
        # The pipe is descriptors 3 and 4.
        script = f'exec 3<&{to_browser} 4>&{from_browser}; exec "$@"'
        process = subprocess.Popen(
            ["bash", "-c", script, "bash", CHROMIUM, *words, f"--user-data-dir={profile}"],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_browser)
        os.close(from_browser)
        try:
            yield Browser(commands, answers)
        finally:
            os.close(commands)
            os.close(answers)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 15)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()
            for _ in range(100):  # its children write into their profile until they are gone
                shutil.rmtree(profile, ignore_errors=True)
                if not Path(profile).exists():
                    break
                time.sleep(0.05)
            Path(profile).mkdir(exist_ok=True)
