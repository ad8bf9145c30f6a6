"""Secrets in words and variables: told by one judge for `stage`, `inv run` and a job's record."""

import json
import re
from pathlib import Path

import pytest

from cluster.errors import ConfigError
from cluster.jobs.record import read_job
from cluster.report.settings import flags_of
from cluster.secret_scan import by_content
from cluster.ssh.limits import check_environment
from cluster.ssh.secret_variables import masked, masked_record, masked_text
from cluster.stage.stage import environment_of
from dlami.tasks.starting import warn_of_secrets
from tests.cluster.made_job import made_job

WORD = "hunter2"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl"
SECRET_VARIABLES = [
    f"GITHUB_PAT={WORD}", f"PGPASS={WORD}", f"PGPASSWORD={WORD}", f"DATABASE_URL=postgres://me:{WORD}@db/x",
    f"DATABASE_URL=postgres://db/x?password={WORD}", "SLACK_WEBHOOK=https://hooks.slack.com/services/T0/B0/x",
    "SLACK_WEBHOOK_URL=x", "SENTRY_DSN=https://0123456789abcdef@o1.ingest.sentry.io/1", f"PRIVATE_KEY={WORD}",
    f"HF_TOKEN={WORD}", f"hfToken={WORD}", f"GITHUBTOKEN={WORD}", f"DB_PASS={WORD}", "DB_PASS=123456", f"ENCRYPTION_KEY={WORD}",
    f"REDIS_URL=redis://:{WORD}@h:6379/0", f"AZURE_STORAGE_CONNECTION_STRING=a;b={WORD}", f"JWT={WORD}", f"OWN={JWT}",
    f"MY_CREDS={WORD}", "NOTE=https://x/y?X-Amz-Signature=abcdef", f"ACCOUNT_KEY={WORD}", "OWN=AKIA" + "Q7ZB" * 4,
]  # fmt: skip
OTHER_VARIABLES = [
    "MAX_TOKENS=512", "HF_TOKEN_PATH=/x/y", "TOKENIZER=gpt2", "SECRET_NAME=mine", "DB_PASSWORD_FILE=/run/db", "COMPASS=north",
    "BYPASS=x", "PASSES=3", "DATABASE_URL=sqlite:///x.db", "REDIS_URL=redis://h:6379/0", "PAD_TOKEN=<pad>", "PATH=/bin:/usr/bin",
    "PATIENCE=x", "KEYBOARD=x", "AUTHOR=x", "URL=ssh://git@host/x.git", "SPAT=x", "JWT_ALGORITHM=x",
]  # fmt: skip


@pytest.mark.parametrize("pair", SECRET_VARIABLES)
def test_a_secret_is_refused_by_all_that_take_variables(pair: str) -> None:
    """By `inv run --env` as by `inv stage --env`, which says how else; the name alone hands it on."""
    name, _, value = pair.partition("=")

    with pytest.raises(ConfigError, match=rf"^{name} "):
        check_environment([pair])
    with pytest.raises(ConfigError, match=rf"^{name} .*give --env {name} alone"):
        environment_of([pair], {})
    assert {name: value} == environment_of([name], {name: value})


@pytest.mark.parametrize("pair", OTHER_VARIABLES)
def test_what_is_no_secret_is_taken_by_all(pair: str) -> None:
    """A number of tokens, the place of a secret, an address without a password."""
    name, _, value = pair.partition("=")

    assert {name: value} == check_environment([pair]) == environment_of([pair], {})


# One of each kind that the scan of files knows; in two parts, so that this file can be delivered.
OF_EACH_KIND = [
    "AKIA" + "Q7ZB" * 4, "ghp_" + "a1" * 18, "github_pat_" + "a1" * 30, "glpat-" + "a1" * 10, "hf_" + "aB" * 17,
    "sk-proj-" + "aB3d" * 10, "sk-ant-" + "api03-" + "aB3d" * 10, "AIza" + "aB3dE" * 7, "npm_" + "a1" * 18,
    "xoxb-" + "123456789-abcdefghij", "sk_live_" + "a1B2" * 6, "SG." + "a" * 22 + "." + "b" * 43, "sq0atp-" + "a" * 22,
    "pypi-" + "AgEIcHlwaS5vcmc" + "a1" * 25, "https://hooks.slack.com/" + "services/T0123456/B0123456/" + "a1" * 12,
    "DefaultEndpointsProtocol=https;AccountKey=" + "a1" * 43 + "==",
]  # fmt: skip


@pytest.mark.parametrize("value", OF_EACH_KIND)
def test_every_part_agrees_on_what_a_secret_s_value_is(value: str) -> None:
    """A file is not delivered with it, a variable of no name is not taken, and no record or page shows it."""
    assert by_content(f"x = {value!r}\n".encode())
    for refuses in (check_environment, lambda words: environment_of(words, {})):
        with pytest.raises(ConfigError):
            refuses([f"X={value}"])
    secret = re.split(r"[=/]", value.rstrip("="))[-1]
    shown = json.dumps([masked(("t.py", value)), masked_text(f"run with {value} now"), masked_record({"x": [value]})])
    assert secret not in shown


@pytest.mark.parametrize(
    "name", sorted({pair.partition("=")[0] for pair in SECRET_VARIABLES if "hunter2" in pair} - {"OWN"})
)
def test_every_part_agrees_on_a_secret_s_name(name: str) -> None:
    """As a variable, as a flag of the program, as an assignment in its words and as a record's key."""
    value = "postgres://me:hunter2@db/x" if name.endswith("URL") else WORD
    with pytest.raises(ConfigError):
        check_environment([f"{name}={value}"])
    with pytest.raises(ConfigError):
        environment_of([f"{name}={value}"], {})
    flag = "--" + name.lower().replace("_", "-")
    words = masked(("t.py", flag, value, f"{flag}={value}", f"export {name}={value}"))
    assert WORD not in json.dumps([words, masked_record({name: value})])


WORDS = {
    ("t.py", "--password", WORD): ("t.py", "--password", "***"),
    ("t.py", f"--token={WORD}", "--lr=0.1"): ("t.py", "--token=***", "--lr=0.1"),
    ("t.py", "--db.password", WORD): ("t.py", "--db.password", "***"),
    ("t.py", f"+wandb.api_key={WORD}"): ("t.py", "+wandb.api_key=***"),
    ("env", f"WANDB_API_KEY={WORD}", "python"): ("env", "WANDB_API_KEY=***", "python"),
    ("t.py", f"postgres://me:{WORD}@db/x"): ("t.py", "postgres://me:***@db/x"),
    ("t.py", "--key-id", "AKIA" + "Q7ZB" * 4): ("t.py", "--key-id", "***"),
    ("sh", "-c", f"export GITHUB_PAT={WORD}; python t.py --password {WORD} x"): (
        "sh", "-c", "export GITHUB_PAT=***; python t.py --password *** x",
    ),
    ("t.py", json.dumps({"api_key": WORD, "lr": 0.1})): ("t.py", '{"api_key": "***", "lr": 0.1}'),
    ("curl", "-u", f"me:{WORD}", "-H", f"Authorization: Bearer {WORD}"): (
        "curl", "-u", "me:***", "-H", "Authorization: Bearer ***",
    ),
    ("t.py", JWT): ("t.py", "***"),
    ("t.py", "ghp_" + "a1" * 18 + ",x"): ("t.py", "***,x"),
    ("t.py", f"-----BEGIN RSA PRIVATE KEY-----\n{'a' * 40}\n{WORD}"): ("t.py", "***"),
}  # fmt: skip


@pytest.mark.parametrize(("words", "shown"), WORDS.items())
def test_program_words_are_masked(words: tuple[str, ...], shown: tuple[str, ...]) -> None:
    """By the flag before them, by the name that they are given to, by their own form; in shell and JSON text too."""
    assert WORD not in " ".join(masked(words))
    if words[0] != "curl":
        assert shown == masked(words)
    assert masked(words) == masked(masked(words))


@pytest.mark.parametrize(
    "words",
    [
        (
            "python",
            "train.py",
            "--lr",
            "0.1",
            "--max-tokens",
            "512",
            "--tokenizer",
            "gpt2",
            "--token-file",
            "/efs/token",
        ),
        ("t.py", "--password", "--verbose"),
        ("docker", "run", "--user", "1000:1000", "-u", "0:0", "image:tag"),
        ("python", "-c", "import os; print(os.environ['HOME'], {'a': 1})"),
        ("t.py", "s3://bucket/key=value/x", "--url", "http://host:80/p?page=2", "--pass-through", "größer"),
        ("t.py", "\udcff", ""),
    ],
)
def test_other_words_stay_as_they_are(words: tuple[str, ...]) -> None:
    """Whatever they are."""
    assert words == masked(words)


def test_a_long_text_is_masked_at_once() -> None:
    """The pattern does not go back and forth over what only looks like the beginning of one."""
    for text in ("a" * 100_000, "://" * 30_000, "--key " * 20_000, "a=" * 50_000, "eyJ" * 30_000):
        assert isinstance(masked_text(text), str)


def test_the_public_record_masks_what_the_user_s_own_keeps(tmp_path: Path) -> None:
    """The program's words and a container's, the addresses in its packages; the job goes on with what was typed."""
    paths = made_job(
        tmp_path,
        command=("python", "t.py", "--password", WORD),
        prefix=("docker", "run", "-e", f"HF_TOKEN={WORD}"),
        variables={"MY_SECRET": WORD},
    )

    public = paths.public.read_text()
    assert WORD not in public
    assert ["python", "t.py", "--password", "***"] == json.loads(public)["plan"]["command"]
    assert ("python", "t.py", "--password", WORD) == read_job(paths).plan.command
    assert "***" == flags_of(masked(read_job(paths).plan.command))["--password"]


def test_who_types_a_secret_is_warned(capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything starts, without the secret; others are not."""
    warn_of_secrets(("python", "t.py", "--lr", "0.1"))
    assert "" == capsys.readouterr().err
    warn_of_secrets(("python", "t.py", "--password", WORD))
    said = capsys.readouterr().err
    assert re.search("looks like a secret.*give the program a file", said)
    assert WORD not in said
