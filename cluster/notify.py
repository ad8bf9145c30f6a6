"""Notifications about a job, by a command on the master or an SNS topic. Delivery never blocks a running job."""

import dataclasses
import enum
import json
import os
import queue
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.clusterfile.receivers import SNS_TOPIC
from cluster.errors import ClusterError, ConfigError
from cluster.inventory import Cluster
from cluster.ssh.onhost import node_role
from cluster.ssh.onhost.telling_line import telling_line
from cluster.terminal import counted
from cluster.typed import from_json

LIMIT_S = 20.0  # for one message; then the command and what it started is ended
_MOST_CHARACTERS = 2000  # of a message's text: SMS, chat and environment variables have limits
_LAST_WORDS = 200  # characters of a failed command's error output


class NotifyEvent(enum.StrEnum):
    """Kind of event that a job's owner is notified of."""

    STARTED = "started"  # a job that waited in the queue
    FAILED = "failed"  # an attempt; the text says what comes next
    HEALED = "healed"  # the next attempt has made its first step
    ENDED = "ended"  # the job, well or not
    NOTICE = "notice"  # a host will go, or may
    CAPACITY = "capacity"  # a waiting cluster got capacity or timed out; `job` is the cluster's name
    LOST = "lost"  # its supervisor was gone; the text says whether the job continues
    HEALTH = "health"  # the findings of 'inv health --notify' have changed
    GUARD = "guard"  # all nodes are about to end
    TEST = "test"  # a test of the notifications


@dataclass(frozen=True, kw_only=True)
class Message:
    """Notification about an event of a job."""

    event: NotifyEvent
    job: str
    text: str
    attempt: int = 0
    host: str = ""
    folder: str = ""  # the job's
    time: float = dataclasses.field(default_factory=lambda: round(time.time(), 1))  # seconds since 1970


class Undelivered(ClusterError):
    """Error: a message was not delivered.

    The text names the topic or the command's first word, and no other word of it.
    """


class Notifier:
    """Sender of one job's notifications, one after the other, in a separate thread."""

    def __init__(self, notify: str, job: str, folder: Path, log: Callable[[str], None] = print) -> None:
        """Start the thread, if there is anybody to notify.

        log: called with a sentence for each message that was not delivered.
        """
        self._notify, self._job, self._folder, self._log = notify, job, folder, log
        self._waiting: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._deliver, daemon=True, name="notify")
        if notify:
            self._thread.start()

    def tell(self, event: NotifyEvent, text: str, *, attempt: int, host: str = "") -> None:
        """Queue a notification and return at once."""
        if self._notify:
            self._waiting.put(
                Message(event=event, job=self._job, text=text, attempt=attempt, host=host, folder=str(self._folder))
            )

    def close(self, wait_s: float = 1.5 * LIMIT_S) -> None:
        """Wait until the queued notifications are delivered, for at most `wait_s`."""
        if not self._notify:
            return
        self._waiting.put(None)
        self._thread.join(wait_s)
        if self._thread.is_alive():
            self._log("notify: not all that was to be told has been taken; given up")

    def _deliver(self) -> None:
        while (message := self._waiting.get()) is not None:
            try:
                deliver(self._notify, message)
            except Exception as e:  # whatever it is, the job continues
                self._log(f"notify: '{message.event}' was not told: {e if isinstance(e, ClusterError) else repr(e)}")


def deliver(notify: str, message: Message, limit_s: float = LIMIT_S) -> None:
    """Deliver one message. Raises Undelivered if the command or topic did not take it."""
    message = dataclasses.replace(message, text=" ".join(message.text.replace("\0", "").split())[:_MOST_CHARACTERS])
    if notify.startswith("arn:"):
        _publish(notify, message)
    else:
        _run(shlex.split(notify), message, limit_s)


def shown(notify: str) -> str:
    """Return the topic, or the command without its other words: one of them may be a password."""
    words = [notify] if notify.startswith("arn:") else shlex.split(notify)
    return words[0] + (f" (and {counted(len(words) - 1, 'more word')})" if len(words) > 1 else "")


def _run(words: list[str], message: Message, limit_s: float) -> None:
    """Run the command, with the message on its stdin and in its environment.

    Uses files instead of pipes, so that neither side has to wait for the other.
    """
    program = str(Path(words[0]).expanduser())
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as given:
        given.write(json.dumps(dataclasses.asdict(message)).encode() + b"\n")
        given.seek(0)
        try:
            process = subprocess.Popen(
                [program, *words[1:]],
                stdin=given,
                stdout=subprocess.DEVNULL,
                stderr=said,
                cwd="/",  # in the job's folder it would be taken for one of the job's own processes
                env={**os.environ, **_environment(message)},
                start_new_session=True,
            )
        except OSError as e:
            raise Undelivered(f"{program} cannot be started on the master: {e.strerror}") from None
        try:
            exit_code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise Undelivered(f"{program} did not end within {limit_s:g} s, and was ended") from None
        if exit_code:
            said.seek(max(0, said.seek(0, os.SEEK_END) - 4 * _LAST_WORDS))
            raise Undelivered(f"{program} ended with {exit_code}{_last_words(said.read(), words[1:])}")


def _environment(message: Message) -> dict[str, str]:
    """Return the message as environment variables.

    DLAMI_JOB is not among them: processes with that variable are ended with the job.
    """
    return {
        "DLAMI_EVENT": message.event,
        "DLAMI_EVENT_JOB": message.job,
        "DLAMI_EVENT_TEXT": message.text,
        "DLAMI_EVENT_ATTEMPT": str(message.attempt),
        "DLAMI_EVENT_HOST": message.host,
    }


def _last_words(said: bytes, secrets: list[str]) -> str:
    """Return the line that gives the reason of the failure, with the command's own words masked."""
    line = telling_line(said.decode(errors="replace"))
    for word in sorted(secrets, key=len, reverse=True):
        if len(word) > 3:
            line = line.replace(word, "…")
    return f": {line[-_LAST_WORDS:]}" if line else ""


def _publish(topic: str, message: Message) -> None:
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    found = SNS_TOPIC.fullmatch(topic)
    assert found
    limits = Config(connect_timeout=5, read_timeout=5, retries={"total_max_attempts": 2})
    facts = dataclasses.asdict(message)
    try:
        node_role.session().client("sns", region_name=found[1], config=limits).publish(
            TopicArn=topic,
            Subject=f"dlami: {message.job} {message.event}"[:100],
            Message=f"{message.text}\n\n{json.dumps(facts)}\n",
            MessageAttributes={
                name: {"DataType": "String", "StringValue": str(facts[name])} for name in ("event", "job")
            },
        )
    except (BotoCoreError, ClientError) as e:
        raise Undelivered(f"{topic} did not take it: {e}") from None


def try_on_master(cluster: Cluster) -> str:
    """Send a test message from the master, as this cluster's jobs would. Return who received it.

    Raises ConfigError if nobody is to be notified, Undelivered if the message was not delivered.
    """
    text = "this is a test: whoever reads it is told"
    return tell_on_master(cluster, NotifyEvent.TEST, text, subject=f"no job of {cluster.name}, only a test")


def tell_on_master(cluster: Cluster, event: NotifyEvent, text: str, *, subject: str, host: str = "") -> str:
    """Send a notification that comes from no supervisor, from the master as jobs do. Return who received it.

    subject: text in place of a job. Raises ConfigError if nobody is to be notified, Undelivered if the message was not
    delivered.
    """
    from cluster.ssh.fanout import Executor
    from cluster.ssh.limits import Limits

    require(cluster)
    message = {"event": event, "text": text, "job": subject, "host": host}
    given = json.dumps({"notify": cluster.notify, **message}).encode()
    command = f"cd {shlex.quote(cluster.project)} && exec {shlex.quote(cluster.python)} -m {__name__}"
    with Executor(cluster) as reach:
        result = reach.run([cluster.master], command, stdin=given, limits=Limits(total_s=2 * LIMIT_S))[cluster.master]
    if not result.ok:
        said = result.stderr.decode(errors="replace").strip()
        raise Undelivered(
            said if result.exit_code == 1 and "Traceback" not in said else f"{result.host}: {result.problem}"
        )
    return shown(cluster.notify)


def require(cluster: Cluster) -> None:
    """Raise ConfigError if the cluster file names no address to notify."""
    if not cluster.notify:
        raise ConfigError(
            f"{cluster.folder / 'cluster.toml'} has no notify: give a command of the master or the ARN of an SNS topic"
        )


def main(asked: Any) -> int:
    """Deliver a message from this machine. Return the exit code."""
    message = from_json(Message, asked)
    try:
        deliver(asked["notify"], message)
    except Undelivered as e:
        print(e, file=sys.stderr)
        return e.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(json.load(sys.stdin)))
