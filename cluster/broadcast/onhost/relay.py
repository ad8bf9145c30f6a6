"""Relay of one host in a copy: receives from the host before, writes, sends to the host after. Runs on every host.

The hosts form a chain. Receiving and sending are independent: what has been written can be read again, so a host that
stalls does not delay any host before it. When a host is lost, the one before it continues with the one after it, from
the first chunk that this one lacks. The head of the chain reads the source instead of receiving. If it cannot continue,
it sends the reason to all hosts. If no earlier host sends any more, the partial file stays, and the next copy resumes
it.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from cluster.broadcast.onhost import file_tree, parts, store
from cluster.broadcast.onhost.errors import Changed, LocalError, Over, SenderLost, WireError, sentence
from cluster.broadcast.onhost.parts import Need
from cluster.broadcast.onhost.pipeline import BEAT_S, Flow
from cluster.broadcast.onhost.protocol import Tls, Wire
from cluster.broadcast.onhost.receiver import Upstream
from cluster.broadcast.onhost.sender import Feeder
from cluster.broadcast.onhost.store import CopySource, CopyStore, Stream
from cluster.broadcast.onhost.target import CopyTarget
from cluster.ssh.onhost.frame import say
from cluster.ssh.onhost.heartbeat import heard_of

_SHOW_S = 0.5
_TELL_S = 5.0  # how long the next host may take to receive the message that all stop


class Relay:
    """Relay of one host in the chain. `spec` comes from the operator's machine: secret, chain, paths and mode."""

    def __init__(self, spec: dict[str, Any], me: int) -> None:
        self._spec, self._chain, self._me = spec, spec["chain"], me
        self._secret = bytes.fromhex(spec["secret"])
        self._tls = Tls(*spec["tls"]) if spec["tls"] else None
        self._flow = Flow(self._secret, is_head=me == 0)
        self._target = CopyTarget(spec, me)
        self._upstream = Upstream(self._flow.news, self._secret, spec["silence_s"], self._tls)
        self._feeder = Feeder(self._flow, self._chain[me + 1 :], self._connect, is_plan=spec["plan"])
        self._store: CopyStore | None = None
        self._own_problem: str | None = None  # why the head has no copy of its own
        self._shown = 0.0

    def take_part(self) -> dict[str, Any]:
        """Run this host's whole part in the copy. Return its result."""
        began = time.monotonic()
        problem, is_lost, over = None, False, ""
        try:
            if self._me == 0:
                self._lead()
            else:
                self._receive()
            self._wait_until_fed()
            problem = self._feeder.problem or self._own_problem
        except Over as e:
            problem, over = f"the master could not go on: {e}", str(e)
        except (LocalError, OSError) as e:
            problem, is_lost = sentence(e) if isinstance(e, OSError) else str(e), isinstance(e, SenderLost)
            over = problem if self._me == 0 else ""
        finally:
            self._flow.stop(over)
            if over:
                self._feeder.wait_until_told(_TELL_S)
            self._upstream.close()
            if self._store:
                self._store.abandon(keep=is_lost)
            self._target.remove_mark()
        return {
            "error": problem,
            "files": self._store.num_files if self._store else 0,
            "bytes": self._store.num_bytes if self._store else 0,
            "lost": self._feeder.lost,
            "seconds": time.monotonic() - began,
            "shared_with": self._target.shared_with,
            "plan": self._target.plan() if self._spec["plan"] and not problem else None,
        }

    # The head ---------------------------------------------------------------------------------------------------------

    def _lead(self) -> None:
        """Lead the chain: list the source, offer the stream, and write this host's own copy if it is wanted."""
        spec, flow = self._spec, self._flow
        self._feeder.start()  # it connects to the next host while the source is listed
        entries, left_out = file_tree.listed(spec["rows"], spec["src"], spec["excludes"], foreseen=spec["plan"])
        flow.set_manifest({"kind": "manifest", "rows": [e.row() for e in entries]}, entries)
        say({"manifest": {"entries": len(entries), "left_out": left_out[:50]}})
        with self._own_trouble():
            self._target.prepare(entries)
        self._look_for_parts()
        flow.wait_for(lambda: flow.need() is not None, lambda: None)
        need = flow.need()
        if spec["plan"] or need is None:
            return
        claims = parts.starts(need, entries, lambda e: file_tree.join(spec["src"], e.path))
        stream = Stream(entries, sorted(need.files), {n: at for n, (at, _) in claims.items()})
        flow.begin(stream, CopySource(stream, spec["src"]), claims, is_whole=True)
        with self._own_trouble():
            if self._target.keeps:
                self._copy_here(stream)
            self._target.settle()

    def _copy_here(self, stream: Stream) -> None:
        """Write the head's own copy, from the same bytes that it sends."""
        own = CopySource(stream, self._spec["src"])
        self._store = CopyStore(stream, self._spec["dst"], set(self._target.wanted))
        try:
            for n in range(stream.num_chunks):
                data = own.read(n)
                self._flow.check(n, data)
                self._store.write(n, data)
                self._show(n)
        finally:
            self._store.abandon()
            own.close()

    @contextlib.contextmanager
    def _own_trouble(self) -> Iterator[None]:
        """Report a failure of the head's own copy at once, and let the other hosts' copy continue."""
        try:
            yield
        except Changed:
            raise
        except (LocalError, OSError) as e:
            self._own_problem = sentence(e) if isinstance(e, OSError) else str(e)
            self._target.give_up()
            say({"trouble": self._own_problem})

    # Everybody else ---------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        """Receive the stream from one upstream host, and from another if that one is lost."""
        self._upstream.listen(self._chain[self._me])
        while True:
            each_s = self._spec["patience_s"] if self._flow.manifest is None else 0.0  # for each host before this one
            wire = self._upstream.next(each_s * self._me + 3 * self._spec["silence_s"])
            self._feeder.start()
            try:
                if self._hear_all(wire):
                    return
            except WireError:
                pass
            except OSError as e:
                if e.filename is not None or isinstance(e, PermissionError):
                    raise
            wire.close()

    def _hear_all(self, wire: Wire) -> bool:
        """Receive from one upstream host until the end of the stream. Return True at the end."""
        flow = self._flow
        manifest = wire.hear_message()
        if flow.manifest is None:
            flow.set_manifest(manifest, [file_tree.FileEntry(*row) for row in manifest["rows"]])
            self._with_beats(wire, lambda: self._target.prepare(flow.entries))
            self._look_for_parts()
        if flow.stream is None:
            flow.wait_for(lambda: flow.need() is not None, lambda: wire.say(kind="wait"))
            need = flow.need()
            assert need is not None
            wire.say(kind="need", **need.message())
            start = wire.hear_message()
            if start["kind"] == "end":  # a plan: there is no stream
                wire.say(kind="done")
                return True
            self._with_beats(wire, lambda: self._take_stream(start["files"], start["claims"]))
        else:
            wire.say(kind="resume", next=flow.ready)
        assert flow.stream
        assert self._store
        while True:
            kind, number, data, digest = wire.hear()
            if kind == "J":
                if flow.ready != flow.stream.num_chunks or flow.root() != number["root"]:
                    raise LocalError("the whole is not what was sent")
                self._with_beats(wire, self._target.settle)
                wire.say(kind="done")
                return True
            if number != flow.ready:
                raise WireError("chunks out of order")
            try:
                self._store.write(number, data)
            except OSError as e:
                raise LocalError(sentence(e)) from e
            flow.publish(number, data, digest)
            self._show(number)

    def _take_stream(self, files: list[int], said: list[list[Any]]) -> None:
        flow = self._flow
        claims = {n: (at, [(length, digest) for length, digest in claimed]) for n, at, claimed in said}
        if flow.mine is None or not flow.mine.is_served(files, claims):
            raise LocalError("the copy had begun before this host could say what it needs: copy again")
        stream = Stream(flow.entries, files, {n: at for n, (at, _) in claims.items()})
        self._store = CopyStore(stream, self._spec["dst"], set(self._target.wanted) & set(files))
        flow.begin(stream, self._store, claims, is_whole=False)

    def _with_beats(self, wire: Wire, do: Callable[[], None]) -> None:
        """Run what may take long on a slow disk, while sending heartbeats. Raises LocalError for its OSError."""
        ended = threading.Event()

        def beat() -> None:
            with contextlib.suppress(OSError, WireError):
                while not ended.wait(BEAT_S):
                    wire.say(kind="wait")

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            do()
        except OSError as e:
            raise LocalError(sentence(e)) from e
        finally:
            ended.set()
            thread.join()

    # All --------------------------------------------------------------------------------------------------------------

    def _connect(self, address: str) -> Wire:
        """Connect to a host after this one, once this host is the head or has an upstream host.

        A host that was given up must not take others with it.
        """
        self._flow.wait_for(lambda: self._me == 0 or self._upstream.is_connected, lambda: None)
        silence_s, patience_s = self._spec["silence_s"], self._spec["patience_s"]
        return Wire.connect(address, self._secret, silence_s, self._tls, patience_s)

    def _look_for_parts(self) -> None:
        """Look for partial files in a thread: it may take as long as reading them, and heartbeats must not pause."""
        wanted, dst = self._target.wanted, self._spec["dst"]

        def look() -> None:
            found = parts.claims(self._flow.entries, wanted, dst) if wanted and not self._spec["plan"] else {}
            self._flow.set_need(mine=Need(set(wanted), found))

        threading.Thread(target=look, daemon=True).start()

    def _wait_until_fed(self) -> None:
        while not self._feeder.is_done.wait(BEAT_S):
            self._show(self._flow.ready)

    def _show(self, number: int) -> None:
        now = time.monotonic()
        if now - self._shown > _SHOW_S:
            self._shown = now
            total = self._flow.stream.num_chunks if self._flow.stream else 0
            say({"at": number * store.CHUNK, "of": total * store.CHUNK})


def main(spec: dict[str, Any], me: int) -> None:
    """Run this host's part in the copy. Report its result and exit."""

    def on_term(_signal: int, _frame: Any) -> None:
        sys.exit(143)

    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, on_term)
    with heard_of():
        result = Relay(spec, me).take_part()
    say({"result": result})
    sys.exit(1 if result["error"] else 0)
