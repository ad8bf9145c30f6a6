"""One host's part in a copy: receive from the host before, keep, pass on to the host after. Runs on every host.

The hosts form a chain. Receiving and passing on are independent: what has been written can be read again, so a host
that stalls holds up nobody before it, and when one is lost the host before it goes on with the next one, from the
chunk that this one has not yet got. The head of the chain reads the source instead of receiving. What a host had got
of a file when nobody fed it any more stays there, and the next copy goes on with it.
"""

from __future__ import annotations

import hashlib
import signal
import socket
import sys
import threading
import time
from typing import Any

from cluster.copying.onhost import parts, store, tree
from cluster.copying.onhost.parts import Need
from cluster.copying.onhost.store import Reader, Store, Stream
from cluster.copying.onhost.wire import Tls, Wire, WireError, chunk_digest, listening
from cluster.ssh.onhost.frame import say

_RECENT = 64  # chunks kept in memory for the host after
_BEAT_S = 1.0  # how often one says that one is still there
_SHOW_S = 0.5


class LocalError(Exception):
    """This host cannot go on: its disk, its permissions."""


class Lost(LocalError):
    """Nobody feeds this host any more."""


class Relay:
    """A host in the chain. `spec` is what the operator's side sends to all: secret, chain, paths, mode."""

    def __init__(self, spec: dict[str, Any], me: int) -> None:
        self._chain, self._me = spec["chain"], me
        self._secret = bytes.fromhex(spec["secret"])
        self._silence_s, self._patience_s = spec["silence_s"], spec["patience_s"]
        self._tls = Tls(*spec["tls"]) if spec["tls"] else None
        self._src, self._dst, self._is_plan = spec["src"], spec["dst"], spec["plan"]
        self._keeps = me > 0 or spec["head_keeps"]
        self._excludes, self._surplus = spec["excludes"], spec["delete"].get(spec["chain"][me], [])
        self._rows = spec["rows"]
        self._manifest: dict[str, Any] = {}
        self._entries: list[tree.Entry] = []
        self._wanted: list[int] = []
        self._stream: Stream | None = None
        self._source: Reader | None = None
        self._digests: list[bytes] = []
        self._recent: dict[int, tuple[bytes | bytearray, bytes]] = {}
        self._ready = 0  # chunks that can be passed on
        self._news = threading.Condition()
        self._mine: Need | None = None  # what this host needs; None while it is not known
        self._below: Need | None = None  # and those after it
        self._claims: dict[int, tuple[int, parts.Claims]] = {}  # where files go on of which all have the beginning
        self._started, self._is_fed = threading.Event(), threading.Event()
        self._incoming: list[Wire] = []
        self._current: Wire | None = None
        self._failed: str | None = None
        self._unreadable: str | None = None  # what could not be read again for the hosts after
        self._lost: dict[str, str] = {}
        self._shown = 0.0

    def run(self) -> dict[str, Any]:
        """Do it all; this host's result."""
        began = time.monotonic()
        problem, kept, is_lost = None, None, False
        try:
            if self._me > 0:
                self._listen()
            self._lead() if self._me == 0 else self._receive()
            self._wait_for_fed()
            problem = self._unreadable
        except LocalError as e:
            problem, is_lost = str(e), isinstance(e, Lost)
        except OSError as e:
            problem = _sentence(e)
        finally:
            with self._news:
                self._failed = problem or "ended"
                self._news.notify_all()
            for wire in [*self._incoming, *([self._current] if self._current else [])]:
                wire.close()
            if isinstance(self._source, Store):
                self._source.abandon(keep=is_lost)
                kept = self._source
        return {
            "error": problem,
            "files": kept.num_files if kept else 0,
            "bytes": kept.num_bytes if kept else 0,
            "lost": self._lost,
            "seconds": time.monotonic() - began,
            "plan": self._plan() if self._is_plan and not problem else None,
        }

    def _lead(self) -> None:
        """The head: what is to be copied, and, if this host wants it too, its own copy."""
        self._entries, left_out = tree.listed(self._rows, self._src, self._excludes, foreseen=self._is_plan)
        self._manifest = {"kind": "manifest", "rows": [e.row() for e in self._entries]}
        say({"manifest": {"entries": len(self._entries), "left_out": left_out[:50]}})
        self._prepare()
        threading.Thread(target=self._feed, daemon=True).start()
        while (need := self._need()) is None:
            time.sleep(0.005)
        if self._is_plan:
            return
        self._claims = parts.starts(need, self._entries, lambda e: tree.join(self._src, e.path))
        stream = Stream(self._entries, sorted(need.files), {n: at for n, (at, _) in self._claims.items()})
        self._digests = [b""] * stream.num_chunks
        self._source, own = Reader(stream, self._src), Reader(stream, self._src)
        self._begin(stream, ready=stream.num_chunks)
        if self._keeps:
            target = Store(stream, self._dst, set(self._wanted))
            try:
                target.write_empty()
                for n in range(stream.num_chunks):
                    target.write(n, own.read(n))
                    self._show(n)
                self._settle()
            finally:
                target.abandon()
                own.close()
            self._wait_for_fed()
            self._source = target
        elif self._surplus:
            self._settle()

    def _receive(self) -> None:
        """Everybody else: from one upstream, or from another that takes its place."""
        while True:
            wire = self._next_upstream()
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
        """One upstream, to the end of the stream."""
        _, manifest, _, _ = wire.hear()
        if not self._entries:
            self._manifest = manifest
            self._entries = [tree.Entry(*row) for row in manifest["rows"]]
            self._locally(self._prepare)
            threading.Thread(target=self._feed, daemon=True).start()
        if self._stream is None:
            while (need := self._need()) is None:
                with self._news:
                    self._news.wait(_BEAT_S)
                wire.say(kind="wait")
            wire.say(kind="need", **need.message())
            _, start, _, _ = wire.hear()
            if start["kind"] == "end":  # a plan: there is no stream
                self._started.set()
                wire.say(kind="done")
                return True
            self._locally(self._take_stream, start["files"], start["claims"])
        else:
            wire.say(kind="resume", next=self._ready)
        while True:
            kind, number, data, digest = wire.hear()
            if kind == "J":
                self._check_whole(number["root"])
                self._locally(self._settle)
                wire.say(kind="done")
                return True
            if number != self._ready:
                raise WireError("chunks out of order")
            assert isinstance(self._source, Store)
            self._locally(self._source.write, number, data)
            self._publish(number, data, digest)
            self._show(number)

    def _prepare(self) -> None:
        if self._keeps:
            self._wanted = tree.missing(self._entries, self._dst)
            if problem := store.room_problem(self._entries, self._wanted, self._dst):
                raise LocalError(problem)
            if not self._is_plan:
                store.make_folders(self._entries, self._dst)
        threading.Thread(target=self._claim, daemon=True).start()

    def _claim(self) -> None:
        """Look for what an interrupted copy left: that may take as long as reading it, and nobody waits in silence."""
        found = parts.claims(self._entries, self._wanted, self._dst) if self._wanted and not self._is_plan else {}
        with self._news:
            self._mine = Need(set(self._wanted), found)
            self._news.notify_all()

    def _need(self) -> Need | None:
        """Of this host and all after it; None while it is not known."""
        return self._mine.merged(self._below) if self._mine and self._below else None

    def _take_stream(self, files: list[int], claims: list[list[Any]]) -> None:
        self._claims = {n: (at, [(length, digest) for length, digest in said]) for n, at, said in claims}
        if not self._mine or not self._mine.is_served(files, self._claims):
            raise LocalError("the copy had begun before this host could say what it needs: copy again")
        stream = Stream(self._entries, files, {n: at for n, (at, _) in self._claims.items()})
        kept = Store(stream, self._dst, set(self._wanted) & set(files))
        self._source = kept
        kept.write_empty()
        self._begin(stream, ready=0)

    def _begin(self, stream: Stream, ready: int) -> None:
        with self._news:
            self._stream, self._ready = stream, ready
            self._news.notify_all()
        self._started.set()

    def _publish(self, number: int, data: bytes | bytearray, digest: bytes) -> None:
        with self._news:
            self._digests.append(digest)
            self._recent[number] = (data, digest)
            self._recent.pop(number - _RECENT, None)
            self._ready = number + 1
            self._news.notify_all()

    def _check_whole(self, root: str) -> None:
        assert self._stream
        if self._ready != self._stream.num_chunks or hashlib.sha256(b"".join(self._digests)).hexdigest() != root:
            raise LocalError("the whole is not what was sent")

    def _settle(self) -> None:
        if self._keeps or self._surplus:
            store.remove(self._surplus, self._dst)
            store.settle(self._entries, self._dst)

    def _plan(self) -> dict[str, Any]:
        return {
            "files": len(self._wanted),
            "bytes": sum(self._entries[n].size for n in self._wanted),
            "surplus": tree.surplus(self._entries, self._dst, self._excludes) if self._keeps else [],
        }

    # Passing on -----------------------------------------------------------------------------------------------------

    def _feed(self) -> None:
        """Give everything to the next host that takes it, in a thread of its own."""
        for target in range(self._me + 1, len(self._chain)):
            if not self._may_feed():
                break
            address = self._chain[target]
            try:
                wire = Wire.connect(address, self._secret, self._silence_s, self._tls, self._patience_s)
            except WireError as e:
                self._lost[address] = f"cannot be connected to: {e}"
                continue
            try:
                self._feed_one(wire)
                self._is_fed.set()
                return
            except LocalError as e:
                self._unreadable = str(e)
                break
            except (WireError, OSError) as e:
                why = "silent" if isinstance(e, TimeoutError) else _sentence(e) if isinstance(e, OSError) else str(e)
                self._lost[address] = why
            finally:
                wire.close()
        self._set_below(Need(set(), {}))
        self._is_fed.set()

    def _feed_one(self, wire: Wire) -> None:
        wire.say(**self._manifest)
        _, reply, _, _ = wire.hear()
        number = 0
        if reply["kind"] == "need":
            self._set_below(Need.read(reply))
            if not self._is_plan:
                while not self._started.wait(_BEAT_S):
                    wire.say(kind="wait")
                assert self._stream
                wire.say(
                    kind="start",
                    files=[n for n, _ in self._stream.files],
                    claims=[[n, at, said] for n, (at, said) in self._claims.items()],
                )
        else:
            number = reply["next"]
        while self._stream and number < self._stream.num_chunks:
            with self._news:
                if self._ready <= number and not self._failed:
                    self._news.wait(_BEAT_S)
                ready, failed = self._ready, self._failed
            if failed:
                raise WireError("this host failed")
            if ready <= number:
                wire.say(kind="wait")
                continue
            data, digest = self._chunk(wire, number)
            wire.send_chunk(number, data, digest, hole=store.is_hole(data))
            number += 1
        wire.say(kind="end", root=hashlib.sha256(b"".join(self._digests)).hexdigest())
        wire.hear()

    def _chunk(self, wire: Wire, number: int) -> tuple[bytes | bytearray, bytes]:
        """A chunk from memory, or read again; what is read must be what had been received."""
        with self._news:
            if number in self._recent:
                return self._recent[number]
        data = self._locally(self._read, number)
        digest = chunk_digest(self._secret, number, data)
        if self._digests[number] not in (b"", digest):
            raise LocalError("a file here changed while it was copied")
        self._digests[number] = digest
        return data, digest

    def _read(self, number: int) -> bytes:
        assert self._source
        try:
            return self._source.read(number)
        except FileNotFoundError:  # it got its name this moment
            return self._source.read(number)

    def _may_feed(self) -> bool:
        """Whether this host has an upstream or everything: one that was given up must not take others along."""
        while not self._failed:
            if self._me == 0 or self._current is not None:
                return True
            time.sleep(0.05)
        return False

    def _set_below(self, need: Need) -> None:
        with self._news:
            self._below = self._below or need
            self._news.notify_all()

    def _wait_for_fed(self) -> None:
        while not self._is_fed.wait(_BEAT_S):
            self._show(self._ready)

    # Being connected to -----------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        listener = listening(self._chain[self._me], self._secret)
        if listener is None:
            raise LocalError("no port is free for the copy")
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            raw, _ = listener.accept()
            try:
                wire = Wire.accepted(raw, self._secret, self._silence_s, self._tls)
            except (OSError, WireError):
                raw.close()
                continue
            with self._news:
                self._incoming.append(wire)
                if self._current:
                    self._current.close()
                self._news.notify_all()

    def _next_upstream(self) -> Wire:
        before = self._patience_s * self._me if not self._entries else 0.0  # each one before us may be waited for
        deadline = time.monotonic() + before + 3 * self._silence_s
        with self._news:
            self._current = None
            while not self._incoming:
                if time.monotonic() > deadline:
                    raise Lost("nothing more came from the host before it")
                self._news.wait(_BEAT_S)
            self._current = self._incoming.pop()
            return self._current

    def _locally(self, do: Any, *arguments: Any) -> Any:
        """What can fail because of this host fails as that, not as a broken connection."""
        try:
            return do(*arguments)
        except OSError as e:
            raise LocalError(_sentence(e)) from e

    def _show(self, number: int) -> None:
        now = time.monotonic()
        if now - self._shown > _SHOW_S:
            self._shown = now
            total = self._stream.num_chunks if self._stream else 0
            say({"at": number * store.CHUNK, "of": total * store.CHUNK})


def _sentence(e: OSError) -> str:
    why = (e.strerror or str(e)).lower()
    return f"{e.filename2 or e.filename}: {why}" if e.filename or e.filename2 else why


def main(spec: dict[str, Any], me: int) -> None:
    """Run this host's part; say how it went."""

    def on_term(_signal: int, _frame: Any) -> None:
        sys.exit(143)

    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, on_term)
    result = Relay(spec, me).run()
    say({"result": result})
    sys.exit(1 if result["error"] else 0)
