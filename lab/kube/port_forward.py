"""Server side of `kubectl port-forward`: connections to a pod's loopback, as streams of one WebSocket.

kubectl opens two streams for each connection it accepts: one for errors, then one for data.
Source: kubernetes/enhancements, KEP-4006 (SPDY in a WebSocket); client-go, tools/portforward.
"""

import selectors
import socket
import threading
from collections.abc import Callable

from lab.kube import spdy
from lab.kube.api_errors import Refusal
from lab.kube.websocket import WebSocket

PROTOCOL = "SPDY/3.1+portforward.k8s.io"
_AT_ONCE = 1 << 15
_LOOK_S = 1.0


class PortForward:
    """All connections of one port-forward, until kubectl disconnects or the API ends."""

    def __init__(self, client: WebSocket, connected: Callable[[int], socket.socket], ended: threading.Event) -> None:
        """Args:
        connected: opens a connection to a port of the pod. Raises Refusal or OSError if no process listens.
        """
        self._client, self._connected, self._ended = client, connected, ended
        self._reader, self._writer = spdy.SpdyParser(), spdy.SpdySerializer()
        self._errors: dict[str, int] = {}  # stream of what goes wrong, by the number of the connection
        self._pods: dict[int, tuple[socket.socket, int]] = {}  # by data stream: the pod's side, the stream of errors
        self._waiting = selectors.DefaultSelector()

    def serve(self) -> None:
        """Forward data until the end, then close all connections. Raises OSError or ValueError for invalid frames."""
        self._waiting.register(self._client, selectors.EVENT_READ)
        try:
            while not self._ended.is_set():
                for key, _ in self._waiting.select(_LOOK_S):
                    if key.data is not None:
                        self._from_pod(key.data)
                    elif not self._from_client():
                        return
        finally:
            for stream in list(self._pods):
                self._drop(stream)
            self._waiting.close()

    def _from_client(self) -> bool:
        """Handle the frames that have arrived. Return False at the end of the connection."""
        data = self._client.receive()
        for frame in self._reader.feed(data or b""):
            if frame.kind == spdy.OPENED:
                self._open(frame)
            elif frame.kind == spdy.DATA and frame.stream in self._pods:
                self._to_pod(frame)
            elif frame.kind == spdy.RESET:
                self._drop(frame.stream)
            elif frame.kind == spdy.PING:
                self._client.send(self._writer.pong(frame.stream))
        return data is not None

    def _open(self, frame: spdy.SpdyFrame) -> None:
        self._client.send(self._writer.reply(frame.stream))
        number, port = frame.headers.get("requestid", ""), frame.headers.get("port", "")
        if frame.headers.get("streamtype") == "error":
            self._errors[number] = frame.stream
            return
        errors = self._errors.pop(number, 0)
        try:
            pod = self._connected(int(port))
        except (Refusal, OSError, ValueError) as e:
            self._end(frame.stream, errors, f"error forwarding port {port} to the pod: {e}")
            return
        self._pods[frame.stream] = (pod, errors)
        self._waiting.register(pod, selectors.EVENT_READ, frame.stream)

    def _to_pod(self, frame: spdy.SpdyFrame) -> None:
        pod, errors = self._pods[frame.stream]
        try:
            pod.sendall(frame.data)
            if frame.is_last:
                pod.shutdown(socket.SHUT_WR)
        except OSError:
            self._drop(frame.stream)
            self._end(frame.stream, errors)

    def _from_pod(self, stream: int) -> None:
        if stream not in self._pods:
            return  # dropped by a frame that came at the same time
        pod, errors = self._pods[stream]
        try:
            data = pod.recv(_AT_ONCE)
        except OSError:
            data = b""
        if data:
            self._client.send(self._writer.data(stream, data))
        else:
            self._drop(stream)
            self._end(stream, errors)

    def _end(self, stream: int, errors: int, why: str = "") -> None:
        """Close both streams of a connection, with an error message if there is one."""
        self._client.send(self._writer.data(errors, why.encode(), is_last=True))
        self._client.send(self._writer.data(stream, is_last=True))

    def _drop(self, stream: int) -> None:
        if stream in self._pods:
            pod, _ = self._pods.pop(stream)
            self._waiting.unregister(pod)
            pod.close()
