"""Detection of secrets on command lines, by their names and forms. Every user of a host can read its process list.

The variables of `--env`, the program words in `public.json` and those on job pages are all judged here.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from cluster.secret_scan import secret_in, secret_or_password_in

MASK = "***"
# Of these words any number of more may stand around.
_SECRET = re.compile(
    r"SECRET|PASSW|PASSPHRASE|PASSCODE|CREDENTIAL|(?:^|_)CREDS$|API_?KEY|AUTHORIZATION$|(?:^|_)(?:JWT|COOKIES?|BEARER)$"
    r"|(?:ACCESS|ACCOUNT|AUTH|CLIENT|CONSUMER|DB|DATABASE|DEPLOY|ENCRYPTION|LICENSE|MASTER|PRIV|PRIVATE|SERVICE|SIGNING|SSH"
    r"|STORAGE)_?KEY|(?:^|_)PWD$|(?:PG|DB|DATABASE|KEY|USER|ROOT|ADMIN|SUDO|SMTP|MAIL|FTP|MYSQL|LDAP|REDIS|MONGO|REGISTRY"
    r"|DOCKER|HTTP|PROXY)_?PASS$|(?:^|_)DSN$|WEBHOOK(?:_UR[LI])?$|CONN(?:ECTION)?_?STR(?:ING)?$"
)
# These are secrets where they are the last word, and also a trainer's tokens, a record's keys.
_PERHAPS = re.compile(
    r"(?:^|_)(?:AUTH|KEYS?|PASS|PAT)$|(?:^|_|AUTH|ACCESS|BOT|GITHUB|GITLAB|HF|ID|REFRESH|SESSION|WANDB)TOKEN$"
)
_DATABASE = re.compile(r"(?:^|_)(?:DATABASE|DB|POSTGRES(?:QL)?|MYSQL|REDIS|MONGO(?:DB)?|AMQP|BROKER)_?UR[LI]$")
_PLACE = re.compile(r"_(?:FILES?|PATH|DIR|FOLDER|NAME|ARN)$")  # of a secret, where it is kept as it should be
_SWITCH = re.compile(r"|0|1|true|false|yes|no|on|off|none|null", re.IGNORECASE)
_HARMLESS = re.compile(
    r"[-+]?[\d.,_]{1,12}(?:e[-+]?\d+)?[kmbgt]?"  # a number, 1e9 and 10B too
    r"|<\S*>|\[\S*\]",  # <s>, [PAD]
    re.IGNORECASE,
)
_FILE = re.compile(r"[~/][\w./-]*\.[A-Za-z]{2,5}")
_BARE_ADDRESS = re.compile(r"[a-z][a-z0-9+]*:(?://)?[\w.:\[\]-]*(?:/[\w./-]*)?", re.IGNORECASE)  # no user, no query

# What is masked in any text: all of the match but its first group.
_IN_TEXT = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"(://[^/\s:@$]*:)[^/\s@$]+(?=@)",
        r"(://)[\w-]{16,}(?=@)",  # a token as the user of an address
        r"([?&](?:[\w-]*token|[\w-]*key|sig|signature|x-amz-signature|[\w-]*secret|pass(?:word|wd)?|pwd)=)[^&\s\"']+",
        r"(//hooks\.slack\.com/(?:services|workflows)/)[^\s\"']+",
        r"(//(?:\w+\.)?discord(?:app)?\.com/api/webhooks/)[^\s\"']+",
        r"((?:authorization[\"']?\s*[:=]\s*[\"']?(?:(?:bearer|basic|token)\s+)?|\bbearer\s+))[^\s\"']{6,}",
        r"(?<![\w-])(-u\s*|--(?:proxy-)?user[= ])(?!\d+:\d+\b)[^\s:=]+:[^\s\"']+",
        r"(?<![\w-])()eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*",  # a JSON Web Token
    )
)
_ASSIGNED = re.compile(r"""(?<![\w.-])(-{0,2}[A-Za-z][\w.-]*)(["']?\s*[:=]\s*["']?)([^\s"',;&|)}]+)""")
_FLAG_IN_TEXT = re.compile(r"""(?<![\w-])(--?[A-Za-z][\w.-]*)(\s+["']?)([^\s"'-][^\s"']*)""")
_FLAG = re.compile(r"--?[A-Za-z][\w.-]*")


def why_secret(name: str, value: str) -> str:
    """Return what makes the variable a secret, as the middle of a sentence. Return an empty string if nothing does."""
    if found := secret_or_password_in(value.encode(errors="surrogateescape")):
        return f"holds {found[0]}, which"
    if any(pattern.search(value) for pattern in _IN_TEXT):
        return "holds a secret, which"
    return "is called like a secret, which" if _is_called_secret(name, value) else ""


def masked(words: Sequence[str]) -> tuple[str, ...]:
    """Return a program's words with the values that look secret replaced by `***`, in shell and JSON text too."""
    shown: list[str] = []
    flag = ""
    for word in words:
        if flag and not word.startswith("--") and _is_secret_after(flag, word):
            shown.append(MASK)
        else:
            shown.append(masked_text(word))
        flag = word if _FLAG.fullmatch(word) else ""
    return tuple(shown)


def masked_text(text: str) -> str:
    """Return the text with what looks like a secret in it replaced by `***`."""
    while found := secret_in(text.encode(errors="surrogateescape")):
        at = len(text.encode(errors="surrogateescape")[: found[1]].decode(errors="surrogateescape"))
        if found[0] == "a private key":
            return text[:at] + MASK
        text = text[:at] + re.sub(r"""^[^\s"',;&|)}]+""", MASK, text[at:])
    for pattern in _IN_TEXT:
        text = pattern.sub(rf"\g<1>{MASK}", text)
    text = _ASSIGNED.sub(lambda m: m[0] if not _is_called_secret(m[1], m[3]) else f"{m[1]}{m[2]}{MASK}", text)
    return _FLAG_IN_TEXT.sub(lambda m: m[0] if not _is_called_secret(m[1], m[3]) else f"{m[1]}{m[2]}{MASK}", text)


def masked_record(value: Any) -> Any:
    """Return a record, as JSON has it, with every secret in its texts and lists of words masked."""
    if isinstance(value, Mapping):
        return {key: MASK if _is_called_secret(key, f"{one}") else masked_record(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        texts = all(isinstance(one, str) for one in value)
        return list(masked(value)) if texts else [masked_record(one) for one in value]
    return masked_text(value) if isinstance(value, str) else value


def _is_secret_after(flag: str, word: str) -> bool:
    if flag in ("-u", "--user", "--proxy-user"):
        return bool(re.fullmatch(r"(?!\d+:\d+$)[^\s:=]+:\S+", word))
    return _is_called_secret(flag, word)


def _is_called_secret(name: str, value: str) -> bool:
    if value in (MASK, "…") or _SWITCH.fullmatch(value) or _FILE.fullmatch(value):
        return False
    known = re.sub(r"\W|-", "_", re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)).strip("_").upper()
    if _PLACE.search(known):
        return False
    if _DATABASE.search(known):
        return not _BARE_ADDRESS.fullmatch(value)
    return bool(_SECRET.search(known) or (_PERHAPS.search(known) and not _HARMLESS.fullmatch(value)))
