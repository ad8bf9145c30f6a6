"""Which variables look like secrets: a command line, which all users of a host can read, is no place for them."""

import re

from cluster.sync.refused import secret_or_password_in

# Of these words any number of more may stand around.
_SECRET = re.compile(r"SECRET|PASSW|PASSPHRASE|CREDENTIAL|API_?KEY|(?:ACCESS|PRIVATE|SSH|SIGNING)_?KEY|(?:^|_)PWD$")
# These are secrets where they are the last word, and also a trainer's tokens, a record's keys.
_PERHAPS = re.compile(r"(?:^|_)(?:AUTH|KEYS?|TOKEN)$")
_PLACE = re.compile(r"_(?:FILE|PATH|DIR)$")  # of a secret, where it is kept as it should be
_SWITCH = re.compile(r"|0|1|true|false|yes|no|on|off|none|null", re.IGNORECASE)
_HARMLESS = re.compile(
    r"[-+]?[\d.,_]{1,12}(?:e[-+]?\d+)?[kmbgt]?"  # a number, 1e9 and 10B too
    r"|<\S*>|\[\S*\]",  # <s>, [PAD]
    re.IGNORECASE,
)
_FILE = re.compile(r"[~/][\w./-]*\.[A-Za-z]{2,5}")


def why_secret(name: str, value: str) -> str:
    """What makes it one, as the rest of a sentence about it; "" if nothing does."""
    if found := secret_or_password_in(value.encode(errors="surrogateescape")):
        return f"holds {found[0]}, which"
    known = name.upper()
    if _PLACE.search(known) or _SWITCH.fullmatch(value) or _FILE.fullmatch(value):
        return ""
    if _SECRET.search(known) or (_PERHAPS.search(known) and not _HARMLESS.fullmatch(value)):
        return "is called like a secret, which"
    return ""
