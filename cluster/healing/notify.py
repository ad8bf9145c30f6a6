"""Who is told of what happens to a job: a command that the master runs, or an SNS topic. No job waits for it."""

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

from cluster.errors import ClusterError, ConfigError
from cluster.inventory import SNS_TOPIC, Cluster
from cluster.ssh.onhost.telling_line import telling_line
from cluster.terminal import counted
from cluster.typed import from_json

LIMIT_S = 20.0  # for one message; then the command and what it started is ended
_MOST_CHARACTERS = 2000  # of a message's text: SMS, chat and environments have limits
_LAST_WORDS = 200  # characters of what a command that failed said


class Event(enum.StrEnum):
    """What a job's owner is told of."""

    STARTED = "started"  # what waited in the queue
    FAILED = "failed"  # an attempt; the text says what comes next
    HEALED = "healed"  # the next attempt has made its first step
    ENDED = "ended"  # the job, well or not
    NOTICE = "notice"  # a host will go, or may
    CAPACITY = "capacity"  # a cluster that waited for room has it, or its time was up; the job is the cluster's name
    LOST = "lost"  # its supervisor was gone; the text says whether the job goes on
    HEALTH = "health"  # what 'inv health --notify' found has changed
    GUARD = "guard"  # all nodes are about to end
    TEST = "test"  # somebody wants to see whether this works


@dataclass(frozen=True, kw_only=True)
class Message:
    """One thing to be told."""

    event: Event
    job: str
    text: str
    attempt: int = 0
    host: str = ""
    folder: str = ""  # the job's
    time: float = dataclasses.field(default_factory=lambda: round(time.time(), 1))  # seconds since 1970


class Undelivered(ClusterError):
    """A message was not taken; the text names the command's first word or the topic, and no other word of it."""


class Notifier:
    """Tells one job's owner, one message after the other, while the job goes on."""

    def __init__(self, notify: str, job: str, folder: Path, log: Callable[[str], None] = print) -> None:
        """log: is given a sentence for each message that was not taken."""
        self._notify, self._job, self._folder, self._log = notify, job, folder, log
        self._waiting: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._deliver, daemon=True, name="notify")
        if notify:
            self._thread.start()

    def tell(self, event: Event, text: str, *, attempt: int, host: str = "") -> None:
        """Pass it on as soon as those before it are; returns at once."""
        if self._notify:
            self._waiting.put(
                Message(event=event, job=self._job, text=text, attempt=attempt, host=host, folder=str(self._folder))
            )

    def close(self, wait_s: float = 1.5 * LIMIT_S) -> None:
        """Wait for what was told to be delivered, though not for ever."""
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
            except Exception as e:  # whatever it is, the job goes on
                self._log(f"notify: '{message.event}' was not told: {e if isinstance(e, ClusterError) else repr(e)}")


def deliver(notify: str, message: Message, limit_s: float = LIMIT_S) -> None:
    """Hand one message over. Raises Undelivered."""
    message = dataclasses.replace(message, text=" ".join(message.text.replace("\0", "").split())[:_MOST_CHARACTERS])
    if notify.startswith("arn:"):
        _publish(notify, message)
    else:
        _run(shlex.split(notify), message, limit_s)


def shown(notify: str) -> str:
    """Who is told, without the command's further words: one of them may be a password."""
    words = [notify] if notify.startswith("arn:") else shlex.split(notify)
    return words[0] + (f" (and {counted(len(words) - 1, 'more word')})" if len(words) > 1 else "")


def _run(words: list[str], message: Message, limit_s: float) -> None:
    """The command, with the message on its stdin and in its environment. Files, not pipes: neither side waits."""
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
    """Not DLAMI_JOB: by that name, what the job leaves behind is found and ended."""
    return {
        "DLAMI_EVENT": message.event,
        "DLAMI_EVENT_JOB": message.job,
        "DLAMI_EVENT_TEXT": message.text,
        "DLAMI_EVENT_ATTEMPT": str(message.attempt),
        "DLAMI_EVENT_HOST": message.host,
    }


def _last_words(said: bytes, secrets: list[str]) -> str:
    """The line that tells why it failed, without the words that it was given."""
    line = telling_line(said.decode(errors="replace"))
    for word in sorted(secrets, key=len, reverse=True):
        if len(word) > 3:
            line = line.replace(word, "…")
    return f": {line[-_LAST_WORDS:]}" if line else ""


def _publish(topic: str, message: Message) -> None:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    found = SNS_TOPIC.fullmatch(topic)
    assert found
    limits = Config(connect_timeout=5, read_timeout=5, retries={"total_max_attempts": 2})
    facts = dataclasses.asdict(message)
    try:
        boto3.Session().client("sns", region_name=found[1], config=limits).publish(
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
    """Tell a test message as the jobs of this cluster would, by the master; who took it.

    Raises ConfigError if nobody is to be told, Undelivered if it was not taken.
    """
    text = "this is a test: whoever reads it is told"
    return tell_on_master(cluster, Event.TEST, text, subject=f"no job of {cluster.name}, only a test")


def tell_on_master(cluster: Cluster, event: Event, text: str, *, subject: str, host: str = "") -> str:
    """Tell what is no supervisor's to tell, by the master as jobs do; who took it.

    subject: what stands in a job's place. Raises ConfigError if nobody is to be told, Undelivered if it was not taken.
    """
    from cluster.ssh.fanout import Reach
    from cluster.ssh.limits import Limits

    require(cluster)
    message = {"event": event, "text": text, "job": subject, "host": host}
    given = json.dumps({"notify": cluster.notify, **message}).encode()
    command = f"cd {shlex.quote(cluster.project)} && exec {shlex.quote(cluster.python)} -m {__name__}"
    with Reach(cluster) as reach:
        result = reach.run([cluster.master], command, stdin=given, limits=Limits(total_s=2 * LIMIT_S))[cluster.master]
    if not result.ok:
        said = result.stderr.decode(errors="replace").strip()
        raise Undelivered(
            said if result.exit_code == 1 and "Traceback" not in said else f"{result.host}: {result.problem}"
        )
    return shown(cluster.notify)


def require(cluster: Cluster) -> None:
    """Raises ConfigError if the cluster file names nobody."""
    if not cluster.notify:
        raise ConfigError(
            f"{cluster.folder / 'cluster.toml'} has no notify: give a command of the master or the ARN of an SNS topic"
        )


def main(asked: Any) -> int:
    """Deliver a message on this machine; the exit code."""
    message = from_json(Message, asked)
    try:
        deliver(asked["notify"], message)
    except Undelivered as e:
        print(e, file=sys.stderr)
        return e.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(json.load(sys.stdin)))
