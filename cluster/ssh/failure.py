"""Failures to get an exit code from a host: a reason that code can check, and a message for a person."""

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from cluster.inventory import SshSettings
from cluster.ssh.onhost.telling_line import telling_line


class Reason(Enum):
    """Reason why a command did not end by itself."""

    NO_ROUTE = "no route"  # nothing takes packets for this address
    REFUSED = "refused"  # the host is up, its sshd is not
    NO_SSH_IN_TIME = "no ssh in time"
    UNKNOWN_NAME = "unknown name"  # the address does not resolve
    UNKNOWN_HOST = "unknown host"  # its host key is not known here
    CHANGED_HOST = "changed host"  # its host key is another than the known one
    REFUSED_KEY = "refused key"  # it does not let us in
    NO_TUNNEL = "no tunnel"  # the AWS CLI does not lead there, or a key could not be lent
    TURNED_AWAY = "turned away"  # its sshd has no place for one more session
    NO_SESSION = "no session"  # ssh failed for another reason
    NOT_BEGUN = "not begun"  # the login shell there ended without coming to the command
    NOT_STARTED = "not started"  # this machine could start neither ssh nor the command
    TIME_LIMIT = "time limit"
    SILENCE = "silence"
    OUTPUT_NOT_KEPT = "output not kept"  # this machine could not store the output
    SIGNAL = "signal"  # ended there by a signal
    BROKE_OFF = "broke off"  # the connection was lost while it ran
    NO_ANSWER = "no answer"  # it exited with 0, but its answer is not complete
    INTERRUPTED = "interrupted"  # by the operator here


PROXY_SAID = "what leads to it says: "  # begins the line of a complaint that is not ssh's own
# We gave the command up, but it may still run.
STILL_RUNNING = frozenset({Reason.TIME_LIMIT, Reason.SILENCE, Reason.OUTPUT_NOT_KEPT})


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Failure on one host: its reason, and the details that its message names."""

    reason: Reason
    limit_s: float = 0.0  # the limit that was exceeded
    detail: str = ""  # the message of ssh or the kernel
    user: str | None = None  # as which we logged in
    key: Path | None = None  # that we showed
    gateway: str = ""  # it is this gateway, before the host, that failed
    left: str = ""  # processes of the command that could not be ended

    def __str__(self) -> str:
        text = self._of_gateway() if self.gateway else self._message()
        return f"{text}; still there: {'; '.join(self.left.splitlines())}" if self.left else text

    def _of_gateway(self) -> str:
        return f"its gateway {self.gateway}: {self._message()}"

    def _message(self) -> str:
        if self.reason is Reason.REFUSED_KEY:
            return _refused_key(self.user or "of this session", self.key)
        return _MESSAGES[self.reason].format(limit=f"{self.limit_s:g} s", detail=self.detail)


_MESSAGES = {
    Reason.NO_ROUTE: "no connection: {detail}",
    Reason.REFUSED: "it refuses connections: is sshd running there?",
    Reason.NO_SSH_IN_TIME: "no ssh within {limit}: is it up, and is its port 22 open to this machine?",
    Reason.UNKNOWN_NAME: "its address does not resolve: look at the hostfile",
    Reason.UNKNOWN_HOST: (
        "its SSH host key is not known here: run 'inv hosts.write', or 'inv hosts.join' for hosts without a stack"
    ),
    Reason.CHANGED_HOST: (
        "its SSH host key is not the one we know: if the host was replaced run 'inv hosts.write', "
        "otherwise do not connect"
    ),
    Reason.NO_TUNNEL: "{detail}",
    Reason.TURNED_AWAY: "it turned our sessions away for {limit}: see MaxStartups and MaxSessions of its sshd",
    Reason.NO_SESSION: "no ssh session: {detail}",
    Reason.NOT_BEGUN: (
        "the command did not begin: the login shell there ended before it ({detail}); "
        "see whether a start-up file such as ~/.bashrc exits or execs another shell, or the account has no usual shell"
    ),
    Reason.NOT_STARTED: "{detail}",
    Reason.TIME_LIMIT: "did not end within {limit}{detail}",
    Reason.SILENCE: "no output for {limit}{detail}",
    Reason.OUTPUT_NOT_KEPT: "its output could not be kept on this machine: {detail}",
    Reason.SIGNAL: "the command was ended there by a signal",
    Reason.BROKE_OFF: "the connection broke before the command ended",
    Reason.NO_ANSWER: "{detail}",
    Reason.INTERRUPTED: "interrupted",
}


def _refused_key(user: str, key: Path | None) -> str:
    if key and not key.is_file():
        return f"we have no key to show (user {user}): [ssh] key in cluster.toml names {key}, which is not there"
    return f"it refused our SSH key (user {user}): 'ssh-add' the key, or set [ssh] key"


def failure_to_connect(said: str, access: SshSettings, connect_s: float) -> Failure:
    """Return the failure that ssh's error output about a connection means."""
    reason, detail = _reason_of(said)
    return Failure(reason=reason, detail=detail, limit_s=connect_s, user=access.user, key=access.key)


def _reason_of(said: str) -> tuple[Reason, str]:
    for reason, pattern in _COMPLAINTS:
        if match := re.search(pattern, said):
            detail = match[1].strip() if match.groups() else ""
            return reason, detail.lower() if reason is Reason.NO_ROUTE else detail
    return Reason.NO_SESSION, telling_line(said) or "ssh ended without a word"


_COMPLAINTS = (  # the first match counts: ssh prints several lines
    (Reason.CHANGED_HOST, r"IDENTIFICATION HAS CHANGED|ost key for .* has changed"),
    (Reason.UNKNOWN_HOST, r"host key is known for|Host key verification failed"),
    (Reason.REFUSED_KEY, r"Permission denied|Too many authentication failures"),
    (Reason.NO_TUNNEL, rf"(?m)^{PROXY_SAID}(.+)$"),
    (Reason.REFUSED, r"Connection refused"),
    (Reason.NO_SSH_IN_TIME, r"timed out"),
    (Reason.UNKNOWN_NAME, r"Could not resolve"),
    (Reason.NO_ROUTE, r"connect to host \S+ port \d+: (.+)"),
)
_TRANSIENT = re.compile(r"Connection (closed|reset)|kex_exchange_identification|banner exchange|Broken pipe")


def is_transient(said: str) -> bool:
    """Return True if the host dropped the connection before authentication (its MaxStartups).

    It is safe to try again.
    """
    is_final = any(sign in said for sign in ("Permission denied", "timed out", PROXY_SAID))
    return bool(_TRANSIENT.search(said)) and not is_final
