"""Sender: passes everything that this host has or gets to the next reachable host of the chain."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence

from cluster.broadcast.onhost.errors import CopyStopped, LocalError, WireError, sentence
from cluster.broadcast.onhost.parts import Need
from cluster.broadcast.onhost.pipeline import Flow
from cluster.broadcast.onhost.protocol import Wire
from cluster.broadcast.onhost.store import is_hole


class Feeder:
    """Sender to the next host of the chain, or to the one after it if that is lost."""

    def __init__(self, flow: Flow, after: Sequence[str], connect: Callable[[str], Wire], *, is_plan: bool) -> None:
        self.lost: dict[str, str] = {}  # address -> why
        self.problem: str | None = None  # error when a chunk could not be read again for the next host
        self.is_done = threading.Event()
        self._flow, self._after, self._connect, self._is_plan = flow, after, connect, is_plan
        self._thread = threading.Thread(target=self._feed_chain, daemon=True)

    def start(self) -> None:
        """Start sending, in a separate thread."""
        if not self._thread.ident:
            self._thread.start()

    def wait_until_told(self, limit_s: float) -> None:
        """Wait until the next host knows that the copy is stopped, or the time is up."""
        if self._thread.ident:
            self._thread.join(limit_s)

    def _feed_chain(self) -> None:
        try:
            for address in self._after:
                if self._has_fed(address):
                    return
        except LocalError as e:
            self.problem = str(e)
        except CopyStopped:
            pass
        finally:
            self._flow.set_need(below=Need(set(), {}))
            self.is_done.set()

    def _has_fed(self, address: str) -> bool:
        """Return True if this host took everything. Raises CopyStopped or LocalError if this host must stop."""
        try:
            wire = self._connect(address)
        except WireError as e:
            self.lost[address] = f"cannot be connected to: {e}"
            return False
        try:
            self._feed(wire)
            return True
        except (CopyStopped, LocalError) as e:
            over = self._flow.over or (str(e) if self._flow.is_head else "")
            with contextlib.suppress(OSError, WireError):
                if over:
                    wire.say(kind="over", why=over)
            raise
        except (WireError, OSError) as e:
            silent = isinstance(e, TimeoutError)
            self.lost[address] = "silent" if silent else sentence(e) if isinstance(e, OSError) else str(e)
            return False
        finally:
            wire.close()

    def _feed(self, wire: Wire) -> None:
        def beat() -> None:
            wire.say(kind="wait")

        flow = self._flow
        flow.wait_for(lambda: flow.manifest is not None, beat)
        assert flow.manifest is not None
        wire.say(**flow.manifest)
        reply = wire.hear_message()
        number = 0
        if reply["kind"] == "need":
            flow.set_need(below=Need.read(reply))
            if not self._is_plan:
                flow.wait_for(lambda: flow.stream is not None, beat)
                assert flow.stream
                files = [n for n, _ in flow.stream.files]
                wire.say(kind="start", files=files, claims=[[n, at, said] for n, (at, said) in flow.claims.items()])
        else:
            number = reply["next"]
        while flow.stream and number < flow.stream.num_chunks:
            flow.wait_for(lambda at=number: flow.ready > at, beat)  # type: ignore[misc]
            data, digest = self._read(number)
            wire.send_chunk(number, data, digest, hole=is_hole(data))
            number += 1
        wire.say(kind="end", root=flow.root())
        wire.hear_message()

    def _read(self, number: int) -> tuple[bytes | bytearray, bytes]:
        """Return a chunk and its digest. Raises LocalError if it cannot be read: the connection is not to blame."""
        try:
            return self._flow.chunk(number)
        except OSError as e:
            raise LocalError(sentence(e)) from e
