"""Wrapper of the operator's own kubectl: the only access to a Kubernetes cluster, with time limits and clear errors."""

import contextlib
import json
import os
import re
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from cluster.errors import ClusterError, ConfigError
from cluster.terminal import pass_on, pass_on_raw
from eks.document import Document, text

BINARY_VARIABLE = "DLAMI_KUBECTL"  # names another kubectl than the first on PATH
# mpi-operator v0.8.2, pinned by commit because a tag can be moved. Its CRD is too long for a client-side apply.
OPERATOR = (
    "kubectl apply --server-side -f "
    "https://raw.githubusercontent.com/kubeflow/mpi-operator/b10758da23ce5d9b9efa6f42f7b050dc8605f5f5/deploy/v2beta1/mpi-operator.yaml"
)
_ANSWER_S = 30.0  # for one request to the API server, and kubectl's own start
_FORWARD_S = 20.0  # for a port to be open
_FORWARDED = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+)")


class KubectlError(ClusterError):
    """Failure of kubectl; the text gives the reason and the remedy. `said` is kubectl's own output."""

    def __init__(self, sentence: str, said: str = "") -> None:
        super().__init__(sentence)
        self.said = said


class Kubectl:
    """One namespace of a cluster, accessed with kubectl's configuration."""

    def __init__(self, context: str = "", namespace: str = "") -> None:
        """context: "" for kubectl's current context; namespace: "" for that context's namespace."""
        self.context, self.namespace = context, namespace

    def get(self, kind: str, name: str = "", *, selector: str = "") -> list[Document]:
        """Return the objects of this kind: the one with this name, or all that match the selector; [] if none exist."""
        which = [name] if name else ["--selector", selector] if selector else []
        said = self._run(["get", kind, *which, "--ignore-not-found", "--output", "json"])
        return _documents(said)

    def create(self, documents: Iterable[Document]) -> list[Document]:
        """Create the objects and return them as the server stores them. Raises KubectlError if one exists already."""
        return _documents(self._run(["create", "--filename", "-", "--output", "json"], text(documents)))

    def apply(self, documents: Iterable[Document]) -> list[Document]:
        """Create the objects or update existing ones to these manifests. Return them as the server stores them."""
        return _documents(self._run(["apply", "--filename", "-", "--output", "json"], text(documents)))

    def patch(self, kind: str, name: str, change: Mapping[str, Any]) -> None:
        """Change fields of one object by a JSON merge patch."""
        self._run(["patch", kind, name, "--type", "merge", "--patch", json.dumps(change)])

    def delete(self, kind: str, name: str, *, wait_s: float = 0) -> bool:
        """Delete one object. Return True if it existed.

        wait_s: wait at most this long until it is gone; 0 returns without waiting.
        """
        patience = ["--wait=true", f"--timeout={wait_s:g}s"] if wait_s else ["--wait=false"]
        said = self._run(
            ["delete", kind, name, "--ignore-not-found", *patience, "--output", "name"], limit_s=_ANSWER_S + wait_s
        )
        return bool(said.strip())

    def logs(
        self, pod: str, *, follow: bool = False, container: str = "", tail: int | None = None, raw: bool = False
    ) -> int:
        """Print a pod's log; with `follow`, until it ends. Return kubectl's exit code. Ctrl-C stops the printing.

        raw: keep control characters on a terminal.
        """
        words = ["logs", pod]
        words += ["--container", container] if container else []
        words += ["--tail", str(tail)] if tail is not None else []
        if follow:
            return self._attached([*words, "--follow"], pass_on_raw if raw else pass_on)
        (pass_on_raw if raw else pass_on)(None, "stdout", self._run(words).encode())
        return 0

    def tail(self, pod: str, lines: int) -> str:
        """Return the last lines of a pod's log."""
        return self._run(["logs", pod, "--tail", str(lines)])

    @contextlib.contextmanager
    def forward(self, target: str, port: int, local_port: int = 0) -> Iterator[int]:
        """Forward a port of 127.0.0.1 to a port of `target`, such as `service/tensorboard`. Yields the local port.

        local_port: 0 for a free one. Raises KubectlError if it does not open.
        """
        words = [*self._words(), "port-forward", "--address", "127.0.0.1", target, f"{local_port or ''}:{port}"]
        with _started(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            # kubectl prints a line per connection, and would block once the pipe is full.
            reading = threading.Thread(target=_read_on, args=(process,), daemon=True, name="port-forward")
            try:
                opened = _opened(process, target)
                reading.start()
                yield opened
            finally:
                process.terminate()
                if reading.is_alive():
                    reading.join(_FORWARD_S)

    def _attached(self, words: Sequence[str], on_output: Callable[[object, str, bytes], None]) -> int:
        """Pass kubectl's output on until it ends. Return its exit code."""
        with _started([*self._words(), *words], stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                with process.stdout:
                    while data := os.read(process.stdout.fileno(), 1 << 16):
                        on_output(None, "stdout", data)
                return process.wait()
            except BaseException:
                process.terminate()
                raise

    def _run(self, words: Sequence[str], stdin: str = "", limit_s: float = _ANSWER_S) -> str:
        """Run kubectl and return its output. Raises KubectlError if it fails or exceeds the time limit."""
        command = [*self._words(), f"--request-timeout={limit_s:g}s", *words]
        try:
            with _started(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
                try:
                    out, complaint = process.communicate(stdin, timeout=limit_s + 10)
                except BaseException:
                    process.kill()
                    raise
        except subprocess.TimeoutExpired:
            raise KubectlError(
                f"kubectl {words[0]} gave no answer within {limit_s + 10:g} s: {_hint_of_reach(self.context)}"
            ) from None
        if process.returncode:
            raise KubectlError(sentence(complaint, words, self.context, self.namespace), complaint)
        return out

    def _words(self) -> list[str]:
        where = [f"--context={self.context}"] if self.context else []
        where += [f"--namespace={self.namespace}"] if self.namespace else []
        return [os.environ.get(BINARY_VARIABLE) or "kubectl", *where]


def sentence(complaint: str, words: Sequence[str], context: str, namespace: str) -> str:
    """Turn kubectl's error output into one sentence with the remedy.

    words: the arguments kubectl was run with, without those for context and namespace.
    """
    lines = [line for line in complaint.splitlines() if line.strip() and not re.match(r"[EWI]\d{4} ", line)]
    said = " ".join(" ".join(lines).split()) or "it said nothing"
    said = re.sub(r"^[Ee]rror(: | from server | in configuration: )", "", said)
    for pattern, advice in _ADVICE:
        if re.search(pattern, complaint):
            return (
                f"kubectl {words[0]}: {_cut(said)}: {advice.format(hint=_hint_of_reach(context), namespace=namespace)}"
            )
    return f"kubectl {words[0]}: {_cut(said)}"


_CONTEXT = "'kubectl config get-contexts' lists them; set eks.context in cluster.toml"
_NO_OPERATOR = f"the cluster has no mpi-operator, which makes pods of trainings; once for it: {OPERATOR}"
_ADVICE = (
    (r"context .*does not exist|context was not found", _CONTEXT),
    (r"executable aws|aws: (command )?not found", "install the AWS CLI: kubectl asks it for its token"),
    (r"doesn't have a resource type \"mpijobs|no matches for kind \"MPIJob", _NO_OPERATOR),
    (r"namespaces \".*\" not found", "create it with 'kubectl create namespace {namespace}'"),
    (r"Unauthorized|must be logged in|ExpiredToken|expired", "log in to AWS again; {hint}"),
    (r"[Ff]orbidden", "ask for an access entry of the cluster that allows it"),
    (
        r"refused|Unable to connect|no such host|i/o timeout|timed out|deadline exceeded|TLS handshake",
        "the cluster does not answer; {hint}",
    ),
)


def _hint_of_reach(context: str) -> str:
    return f"try 'kubectl{f' --context {shlex.quote(context)}' if context else ''} cluster-info'"


def _cut(said: str) -> str:
    return said if len(said) <= 400 else said[:399] + "…"


def _documents(said: str) -> list[Document]:
    """Parse kubectl's JSON output: one object, a list, several objects one after another, or nothing."""
    decoder, at = json.JSONDecoder(), 0
    found: list[Document] = []
    while rest := said[at:].lstrip():
        at = len(said) - len(rest)
        try:
            one, at = decoder.raw_decode(said, at)
        except ValueError as e:
            raise KubectlError(f"kubectl's answer is no JSON ({e}): {rest[:80]}") from None
        found += one["items"] if one.get("kind", "").endswith("List") and "items" in one else [one]
    return found


def _started(words: Sequence[str], **streams: Any) -> "subprocess.Popen[str]":
    """Start kubectl. Raises ConfigError if it is not installed."""
    try:
        return subprocess.Popen(words, text=True, errors="replace", **{"stdin": subprocess.DEVNULL, **streams})
    except OSError as e:
        raise ConfigError(
            f"{words[0]} cannot be started ({e.strerror}): install kubectl, "
            f"https://kubernetes.io/docs/tasks/tools/, or name it with {BINARY_VARIABLE}=PATH"
        ) from e


def _read_on(process: "subprocess.Popen[str]") -> None:
    """Read and discard the process's output until it ends."""
    assert process.stdout
    with contextlib.suppress(OSError, ValueError):  # closed by the other thread
        while os.read(process.stdout.fileno(), 65536):
            pass


def _opened(process: "subprocess.Popen[str]", target: str) -> int:
    """Return the local port that a port-forward has opened. Raises KubectlError if it ends or opens none in time."""
    import selectors

    assert process.stdout
    said, deadline = "", time.monotonic() + _FORWARD_S
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while selector.select(max(0.0, deadline - time.monotonic())):
            data = os.read(process.stdout.fileno(), 65536).decode(errors="replace")
            said += data
            if found := _FORWARDED.search(said):
                return int(found[1])
            if not data:
                break
    raise KubectlError(f"no port leads to {target}: {_cut(' '.join(said.split())) or 'kubectl said nothing'}", said)
