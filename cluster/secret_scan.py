"""Secret scan: finds files that must not leave this machine, by their name, content or size.

`_BY_CONTENT` is the only list of what a secret's value looks like. `stage`, `--env`, `public.json` and job pages judge
values by it, too (`cluster/ssh/secret_variables.py`). The library detect-secrets 1.5 takes 4.4 s for 1 MB of code, this
scan 0.02 s, and it does not know the tokens of Hugging Face, Anthropic and Google.
"""

import fnmatch
import re

LARGEST = 50_000_000  # bytes of one file: a larger one is data, which other commands bring to the hosts

_BY_NAME = {
    "an environment file": (".env", ".env.*", "*.env", ".envrc"),
    "a private key": ("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "*.key", "*.ppk", "*.p12", "*.pfx", "*.jks"),
    "a store of passwords": ("*.kdbx", "*.keystore", ".htpasswd", ".pgpass", ".my.cnf", "*.ovpn"),
    "a login's file": (
        *(".netrc", "_netrc", ".git-credentials", ".pypirc", ".npmrc", ".s3cfg", ".boto", "kubeconfig"),
        *("kaggle.json", ".dockercfg", ".docker/config.json", "huggingface/token", ".huggingface/token"),
        "huggingface/stored_tokens",
    ),
    "a credentials file": ("credentials", "credentials.*", "*credentials.json", "client_secret*.json"),
    "a secrets file": (
        *("secret.*", "secrets.*", "*.secret", "*.secrets", "service-account*.json", "service_account*.json"),
        *("accesskeys.csv", "*_accesskeys.csv", "rootkey.csv"),
        *(f"*api{gap}key{s}{ending}" for gap in ("", "_", "-") for s in ("", "s") for ending in ("", ".txt", ".json")),
    ),
    "a state of Terraform's, with all its secrets": ("*.tfstate", "*.tfstate.backup"),
}
_FOLDERS = {".ssh": "a private key's folder", ".gnupg": "a private key's folder", ".aws": "a credentials folder"}
_SECRETS_FOLDERS = ("secrets", ".secrets")  # folders that may hold programs, too
_OF_SECRETS = (".txt", ".json", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".conf", ".properties", ".token")
_NO_SECRET = (".example", ".sample", ".template", ".dist", ".tmpl", ".py", ".pyi", ".md", ".rst", ".go", ".rs", ".pub")
"""Suffixes of examples of secrets, and of programs that handle secrets: their content decides."""

_GAP = rb"(?>\\[rn]|[^A-Za-z0-9\\]){0,40}+"  # between a key's lines, also in a string, a list or a diff
_PRIVATE_KEY = (
    rb"-----BEGIN (?>[A-Z0-9]+ ){0,3}?PRIVATE KEY(?: BLOCK)?-----"
    + (_GAP + rb"(?>[A-Z][\w-]{2,30}: [^\n\\]{0,200}){0,1}") * 3  # its headers, if it has any
    + _GAP
    + rb"[A-Za-z0-9+/]{32}"
)
_SECRET_KEY = rb"(?i:secret_?access_?key|aws_secret_key)[\"']?\s{0,8}[:=]\s{0,8}[\"']?"
_DRAWN = rb"(?=[\w-]{0,39}\d)(?=[\w-]{0,39}[A-Z])[\w-]{40}"  # random characters: not a row of x, no words
_BY_CONTENT = (  # kind, beginnings, and the pattern that decides from there
    ("a private key", (b"-----BEGIN ",), _PRIVATE_KEY),
    ("a private key", (b"PuTTY-User-Key-File-",), rb"PuTTY-User-Key-File-\d: \S+\r?\n[-+ ]?Encryption: "),
    (
        "an AWS access key",
        (b"AKIA", b"ASIA"),
        rb"(?<![A-Za-z0-9/+]).{4}(?![A-Z2-7]{9}EXAMPLE)[A-Z2-7]{16}(?![A-Za-z0-9/+])",
    ),
    (
        "an AWS secret key",
        (
            *(b"secret_access_key", b"SECRET_ACCESS_KEY", b"SecretAccessKey", b"secretAccessKey", b"secretaccesskey"),
            *(b"aws_secret_key", b"AWS_SECRET_KEY"),
        ),
        _SECRET_KEY + rb"(?![A-Za-z0-9/+]{0,39}EXAMPLE)[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=])",
    ),
    ("a GitHub token", (b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_"), rb"(?<!\w).{4}[A-Za-z0-9]{36}"),
    ("a GitHub token", (b"github_pat_",), rb"github_pat_\w{60}"),
    ("a GitLab token", (b"glpat-",), rb"(?<!\w)glpat-[\w-]{20}"),
    ("a Hugging Face token", (b"hf_",), rb"(?<!\w)hf_[A-Za-z]{34}(?!\w)"),
    ("an OpenAI key", (b"sk-proj-", b"sk-svcacct-", b"sk-admin-"), rb"(?<!\w)sk-[a-z]+-" + _DRAWN),
    ("an Anthropic key", (b"sk-ant-",), rb"(?<!\w)sk-ant-[a-z]+\d\d-" + _DRAWN),
    ("a Google API key", (b"AIza",), rb"(?<![\w/])AIza[\w-]{35}(?![\w/+=-])"),
    ("an npm token", (b"npm_",), rb"(?<!\w)npm_[A-Za-z0-9]{36}(?!\w)"),
    ("an npm token", (b"_authToken",), rb"_authToken\s{0,4}=\s{0,4}[\"']?(?=[\w-]{0,19}\d)[\w-]{20}"),
    ("a Slack webhook", (b"hooks.slack.com/services/T",), rb"hooks\.slack\.com/services/T\w{6,12}/B\w{6,12}/\w{20}"),
    ("a Stripe key", (b"sk_live_", b"rk_live_"), rb"(?<!\w).{8}[A-Za-z0-9]{24}"),
    ("a SendGrid key", (b"SG.",), rb"(?<![\w.])SG\.[\w-]{22}\.[\w-]{43}(?![\w-])"),
    ("a PyPI token", (b"pypi-AgEIcHlwaS5vcmc",), rb"pypi-AgEIcHlwaS5vcmc[\w-]{50}"),
    ("a Square token", (b"sq0atp-", b"sq0csp-"), rb"(?<!\w)sq0[a-z]{3}-[\w-]{22}"),
    ("an Azure storage key", (b"AccountKey=",), rb"AccountKey=[A-Za-z0-9+/]{86}=="),
    ("a Slack token", (b"xoxa-", b"xoxb-", b"xoxp-", b"xoxr-", b"xoxs-"), rb"xox.-[0-9]{6,20}-[\w-]{10}"),
)
_PATTERNS = tuple((why, sign, re.compile(pattern)) for why, signs, pattern in _BY_CONTENT for sign in signs)
_PASSWORD = re.compile(rb"://[^/\s:@$]+:[^/\s@$]+@")


def by_name(path: str) -> str:
    """Return why a file of this path is refused, whatever its content. "" if it is not."""
    *folders, name = path.lower().split("/")
    for folder in folders:
        if folder in _FOLDERS:
            return _FOLDERS[folder]
    if name.endswith(_NO_SECRET):
        return ""
    if name.endswith(_OF_SECRETS) and any(folder in _SECRETS_FOLDERS for folder in folders):
        return "in a secrets folder"
    below = "/".join([*folders[-1:], name])
    return next((why for why, patterns in _BY_NAME.items() if any(_is_called(below, p) for p in patterns)), "")


def _is_called(below: str, pattern: str) -> bool:
    """Return True if the pattern matches the file's name, or its folder and name if the pattern has a slash.

    Args:
        below: the file's name with the folder that it is in.
    """
    return fnmatch.fnmatchcase(below if "/" in pattern else below.rpartition("/")[2], pattern)


def by_size(size: int) -> str:
    """Return why a file of so many bytes is refused, "" if it is not."""
    return f"{size / 1e6:,.0f} MB, more than {LARGEST / 1e6:.0f}" if size > LARGEST else ""


def by_content(data: bytes) -> str:
    """Return why a file with these bytes is refused, "" if it is not."""
    found = secret_in(data)
    return f"{found[0]} is in it" if found else ""


def secret_in(data: bytes) -> tuple[str, int] | None:
    """Return the kind and the offset of a secret in these bytes, None if no pattern matches."""
    for why, sign, pattern in _PATTERNS:
        at = data.find(sign)
        while at >= 0:
            if pattern.match(data, at):
                return why, at
            at = data.find(sign, at + len(sign))
    return None


def secret_or_password_in(data: bytes) -> tuple[str, int] | None:
    """Return the kind and the offset of a secret, or of a password in a URL.

    Code and manuals have too many such URLs to be refused for one.
    """
    found = _PASSWORD.search(data)
    return secret_in(data) or (("a password in an address", found.start()) if found else None)


def without_secrets(difference: bytes) -> bytes:
    """Return the output of `git diff` without the parts of files that have a secret in old or new lines."""
    parts = re.split(rb"^(?=diff --git )", difference, flags=re.M)
    return b"".join(_head(part) if by_content(part) else part for part in parts)


def _head(part: bytes) -> bytes:
    return part.partition(b"\n")[0] + b"\n(left out: " + by_content(part).encode() + b")\n"
