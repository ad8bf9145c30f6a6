"""Which files of a folder are the operator's code: what git tracks, as it is now; nothing secret, nothing too large."""

import io
import os
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster import secret_scan
from cluster.code.archive import write_archive
from cluster.code.snapshot import Snapshot, take
from cluster.errors import ConfigError
from cluster.inventory import ROOT
from tests.cluster.repositories import git, written
from tests.conftest import wait_for

KEY_BODY = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"  # of no key: the beginning of any
PEM = f"-----BEGIN PRIVATE KEY-----\n{KEY_BODY}\n-----END PRIVATE KEY-----\n"
AWS_ID, AWS_SECRET = "AKIA" + "Q7ZB" * 4, "aB3/" * 10
SECRETS = {
    "a PEM key": PEM,
    "one in a Windows file": PEM.replace("\n", "\r\n"),
    "one in a string": repr(PEM),
    "one in JSON": '{"private_key": "' + PEM.replace("\n", "\\n") + '"}',
    "one with a password": PEM.replace("--\n", "--\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0011\n\n", 1),
    "OpenSSH's": PEM.replace("PRIVATE", "OPENSSH PRIVATE"),
    "GnuPG's": PEM.replace("BEGIN PRIVATE KEY", "BEGIN PGP PRIVATE KEY BLOCK").replace("--\n", "--\nVersion: 2\n\n", 1),
    "PuTTY's": "PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\n",
    "an AWS key's id": f"key = '{AWS_ID}'",
    "an AWS secret in a profile": f"aws_secret_access_key = {AWS_SECRET}\n",
    "one in the environment": f"export AWS_SECRET_ACCESS_KEY='{AWS_SECRET}'\n",
    "one that a role gave": f'"SecretAccessKey": "{AWS_SECRET}"',
    "a GitHub token": "https://ghp_" + "a1B2" * 9 + "@github.com/x/y",
    "a Hugging Face token": "login('hf_" + "aBcD" * 8 + "eF')",
    "an OpenAI key": "sk-" + "proj-" + "aB3-" * 12,
    "an Anthropic key": "key: sk-" + "ant-api03-" + "aB3_" * 12,
    "a Google key": "?key=AI" + "za" + "Sy4bC-_" * 5,
    "an npm token": "token npm" + "_" + "a1B2" * 9,
    "npm's line": "//npm.example.com/:_auth" + "Token=0a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f",
}
HARMLESS = {
    "AWS's own examples": "AKIAIOSFODNN7EXAMPLE aws_secret_access_key=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "a check for keys": 'if "-----BEGIN RSA PRIVATE KEY-----" in text: raise NotHere',
    "a public key": PEM.replace("PRIVATE", "PUBLIC"),
    "a certificate": PEM.replace("PRIVATE KEY", "CERTIFICATE"),
    "a name to look up": "secret_access_key = os.environ['AWS_SECRET_ACCESS_KEY']",
    "base64 with four such letters": "x" + AWS_ID + "/9f",
    "a row of x": "sk-" + "proj-" + "x" * 48 + " sk-" + "ant-api03-" + "X" * 48,
    "a name of a class": "sk-" + "proj-" + "a-class-of-some-style-sheet-that-is-rather-long",
    "a variable for npm": "//npm.example.com/:_auth" + "Token=${NPM_TOKEN_OF_THE_WHOLE_COMPANY_1}",
    "base64 with Google's letters": "x/AI" + "za" + "Sy4bC12" * 5 + "/",
    "a constant": "hf_model_name_that_is_long_enough_to_be_one = 'bert'",
}
BAD_NAMES = (".env", "conf/.env.production", ".ENV", "prod.env", "id_rsa", "keys/id_ed25519", "tls/server.key", ".netrc",
             "a.p12", ".ssh/config", "home/.aws/credentials", "credentials.json", "secrets.toml", "client_secret_1.json",
             "rootkey.csv", ".git-credentials", "kaggle.json", ".kaggle/kaggle.json", ".npmrc", ".docker/config.json", "x/.dockercfg",
             ".envrc", "infra/terraform.tfstate", "terraform.tfstate.backup", ".huggingface/token", ".cache/huggingface/token",
             "secrets/api.txt", "conf/.secrets/prod/db.yaml", "api_key.txt", "openai-api-key", "keys/apikeys.json")  # fmt: skip
GOOD_NAMES = (".env.example", "id_rsa.pub", "secrets.py", "environment.yml", "keys.py", "credentials.md", "key/a.txt",
              "monkey", "x.environment", "cert.pem", "docker/config.json", ".docker/Dockerfile", "secrets/__init__.py", "secrets/chart.svg",
              "secrets/README.md", "tokens.txt", "token", "api_key.py", "api_keys.html", ".env.d/a.txt", "credentials.d/a.txt",
              "main.tf", "kaggle.py")  # fmt: skip


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with three commits' worth of nothing special."""
    folder = tmp_path / "code"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    written(
        folder, {"train.py": "print(1)\n", "src/model.py": "x = 1\n", "run.sh": "#!/bin/sh\n", ".gitignore": "out/\n"}
    )
    (folder / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("src/model.py")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


def names(snapshot: Snapshot) -> list[str]:
    return [f.path for f in snapshot.files]


def archived(snapshot: Snapshot) -> dict[str, bytes]:
    """What its archive has, by name."""
    file = io.BytesIO()
    write_archive(snapshot, file)
    file.seek(0)
    with tarfile.open(fileobj=file) as archive:
        return {m.name: archive.extractfile(m).read() if m.isreg() else m.linkname.encode() for m in archive}


def test_tracked_files_are_taken_as_they_are_now(repository: Path) -> None:
    """Local changes and removals count, what is staged too; kinds are kept, modes are git's two."""
    written(repository, {"train.py": "print(2)\n", "staged.py": "", "notes.txt": "mine", "out/log": "x"})
    git(repository, "add", "staged.py")
    (repository / "src/model.py").unlink()

    taken = take(repository)

    assert [".gitignore", "link", "run.sh", "staged.py", "train.py"] == names(taken)
    assert {"train.py": "f", "run.sh": "x", "link": "l"}.items() <= {f.path: f.kind for f in taken.files}.items()
    assert ("notes.txt",) == taken.untracked
    assert taken.revision == git(repository, "rev-parse", "--short=12", "HEAD").strip() + "+changes"
    assert b"+print(2)" in taken.difference and b"deleted file mode" in taken.difference
    assert "untracked, not taken: notes.txt" in taken.described()
    assert {"link": b"src/model.py", "train.py": b"print(2)\n"}.items() <= archived(taken).items()


def test_its_name_is_that_of_its_bytes(repository: Path, tmp_path: Path) -> None:
    """Times and places do not count, one byte does; a commit changes what is said of it, not its content."""
    first = take(repository)
    os.utime(repository / "train.py", (1, 1))
    git(tmp_path, "clone", "-q", str(repository), "other")
    assert (first.content, first.digest) == (take(tmp_path / "other").content, take(tmp_path / "other").digest)

    written(repository, {"train.py": "print(3)\n"})
    changed = take(repository)
    git(repository, "commit", "-qam", "second")
    committed = take(repository)

    assert len({first.content, changed.content}) == 2
    assert changed.content == committed.content
    assert changed.digest != committed.digest


def test_where_the_operator_stands_is_kept(repository: Path) -> None:
    """From a folder below the root all of it is taken; one without code is no place to start from."""
    assert ("src", names(take(repository))) == (take(repository / "src").below, names(take(repository / "src")))
    (repository / "out").mkdir()
    with pytest.raises(ConfigError, match=r"tracks no file in .*/out, where you stand"):
        take(repository / "out")


def test_include_takes_what_git_does_not(repository: Path) -> None:
    """A file, a pattern, an ignored one by its name, all of it; what is not there is said."""
    written(repository, {"notes.txt": "", "a.csv": "", "b.csv": "", "out/best.pt": "x", "out/__pycache__/c.pyc": ""})
    tracked = set(names(take(repository)))

    def more(*include: str) -> set[str]:
        return set(names(take(repository, include))) - tracked

    assert {"notes.txt"} == more("notes.txt")
    assert {"a.csv", "b.csv"} == more("*.csv")
    assert {"out/best.pt"} == more("out")
    assert {"notes.txt", "a.csv", "b.csv"} == more(".")
    assert set() == more("train.py")
    with pytest.raises(ConfigError, match="--include nothing: there is no such file"):
        more("nothing")


def test_outside_git_it_says_what_to_do(tmp_path: Path) -> None:
    """All files only where that was asked for, without caches."""
    written(tmp_path, {"train.py": "", "sub/a.py": "", "__pycache__/a.pyc": "", ".venv/bin/python": ""})
    (tmp_path / "data").symlink_to("/data")

    with pytest.raises(ConfigError, match=r"in no git repository.*--include \. .*--no-code"):
        take(tmp_path)
    assert ["data", "sub/a.py", "train.py"] == names(take(tmp_path, ["."]))


def test_links_lead_nowhere(repository: Path, tmp_path: Path) -> None:
    """A folder that has become a link out of the repository: nothing behind it is taken."""
    outside = written(tmp_path / "outside", {"model.py": "mine"})
    (repository / "src/model.py").unlink()
    (repository / "src").rmdir()
    (repository / "src").symlink_to(outside)

    assert "src/model.py" not in names(take(repository))


def test_a_name_that_is_no_text_arrives(repository: Path) -> None:
    """Bytes that are not UTF-8, spaces, newlines, quotes; as long as a file's name may be."""
    odd = [os.fsdecode(b"\xff\xfe.py"), "a b'\"\n.py", "x" * 255]
    written(repository, dict.fromkeys(odd, "1"))
    git(repository, "add", ".")

    assert set(odd) <= archived(take(repository)).keys()


def test_large_files_are_refused_by_name(repository: Path) -> None:
    """One byte more than 50 MB; nothing is taken then, and all of them are named."""
    for name, size in {
        "weights.bin": secret_scan.LARGEST + 1,
        "fits.bin": secret_scan.LARGEST,
        "zwei.bin": 99_000_000,
    }.items():
        with (repository / name).open("wb") as file:
            file.truncate(size)
    git(repository, "add", "-N", ".")

    with pytest.raises(ConfigError) as error:
        take(repository)
    assert [
        f"2 files of {repository} must not leave this machine; nothing was sent:",
        "  weights.bin: 50 MB, more than 50",
        "  zwei.bin: 99 MB, more than 50",
    ] == str(error.value).splitlines()[:3]
    assert "--exclude" in str(error.value)
    assert "weights.bin" not in names(take(repository, exclude=["weights.bin", "zwei.*", "fits.bin"]))


@pytest.mark.parametrize("name", BAD_NAMES)
def test_secret_names(name: Any) -> None:
    """Whatever is in them."""
    assert secret_scan.by_name(name)


@pytest.mark.parametrize("name", GOOD_NAMES)
def test_names_that_are_no_secret(name: Any) -> None:
    """They are judged by what is in them."""
    assert "" == secret_scan.by_name(name)


@pytest.mark.parametrize("what", SECRETS)
def test_secret_contents(what: Any) -> None:
    """Also in the middle of a file, and in a line that `git diff` shows as removed."""
    text = f"import os\n{SECRETS[what]}\nprint()\n"
    removed = "".join(f"-{line}" for line in text.splitlines(keepends=True))
    assert secret_scan.by_content(text.encode())
    shown = secret_scan.without_secrets(f"diff --git a/x b/x\n{removed}diff --git a/y b/y\n+fine\n".encode())
    assert b"diff --git a/x b/x\n(left out: " in shown
    assert b"+fine" in shown
    assert not secret_scan.by_content(shown)


@pytest.mark.parametrize("what", HARMLESS)
def test_contents_that_are_no_secret(what: Any) -> None:
    """What programs and manuals that deal with secrets have in them."""
    assert "" == secret_scan.by_content(HARMLESS[what].encode())


def test_a_difference_tells_no_secret(repository: Path) -> None:
    """A key that was just taken out of a file, and a secret file that git tracks no more."""
    written(repository, {"conf.py": f"KEY = '{AWS_ID}'\n", ".env": "PASSWORD=hunter2\n", "local.py": "hunter3"})
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "oops")
    written(repository, {"conf.py": "KEY = None\n", "train.py": "print(4)\n", "local.py": "hunter4"})
    git(repository, "rm", "-q", "--cached", ".env")

    difference = take(repository, exclude=["local.py"]).difference

    assert b"+print(4)" in difference
    assert not [secret for secret in (AWS_ID.encode(), b"hunter") if secret in difference]


def test_what_was_read_is_not_read_again(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only files that have settled and are as they were; a change that leaves size and time as they were is seen."""
    before = take(repository)
    wait_for(lambda: not read_by_take(repository, monkeypatch), 30, "all have settled")
    assert before.files == take(repository).files

    path, known = repository / "train.py", (repository / "train.py").stat()
    path.write_text("print(7)\n")
    os.utime(path, ns=(known.st_atime_ns, known.st_mtime_ns))
    assert {"train.py"} == read_by_take(repository, monkeypatch)
    assert before.content != take(repository).content
    path.write_text(f"'{AWS_ID}'")
    with pytest.raises(ConfigError, match=r"train\.py: an AWS access key"):
        take(repository)


def read_by_take(folder: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The files of a folder that are read."""
    names: set[str] = set()
    with monkeypatch.context() as patch:
        read = Path.read_bytes
        patch.setattr(Path, "read_bytes", lambda path: (names.add(path.name), read(path))[1])
        take(folder)
    return names & {p.name for p in folder.rglob("*")}


def test_this_project_can_be_sent() -> None:
    """`inv sync` takes it: no test of a secret looks like one."""
    assert {"tasks.py", "cluster/secret_scan.py", "scripts/first-boot.sh"} <= set(names(take(ROOT)))


NAMES = st.sampled_from([*BAD_NAMES, *GOOD_NAMES, "a.py", "b/c.py", "b/data.json"])
CONTENTS = st.one_of(
    st.binary(max_size=200),
    st.tuples(st.binary(max_size=30), st.sampled_from(sorted(SECRETS)), st.binary(max_size=30)).map(
        lambda t: t[0] + b"\n" + SECRETS[t[1]].encode() + b"\n" + t[2]
    ),
)


@given(files=st.dictionaries(NAMES, CONTENTS, min_size=1, max_size=6))
def test_what_is_refused_is_never_in_the_archive(files: Any) -> None:
    """Either every such file is named and nothing is taken, or none is there; the others are, byte for byte."""
    bad = {name for name, data in files.items() if secret_scan.by_name(name) or secret_scan.by_content(data)}
    secret = [SECRETS[s].encode() for s in SECRETS]
    with tempfile.TemporaryDirectory() as folder:
        written(Path(folder), files)
        if bad:
            with pytest.raises(ConfigError) as error:
                take(Path(folder), ["."])
            assert all(f"  {name}: " in str(error.value) for name in bad)
        if files.keys() == bad:
            return
        have = archived(take(Path(folder), ["."], exclude=sorted(bad)))
    assert {name: data for name, data in files.items() if name not in bad} == have
    assert not [s for s in secret if any(s in data for data in have.values())]


def test_a_file_that_changes_while_it_is_sent(repository: Path) -> None:
    """What was looked at is what is sent, or nothing is."""
    taken = take(repository)
    written(repository, {"train.py": f"'{AWS_ID}'"})
    with pytest.raises(ConfigError, match=r"train\.py changed while it was read"):
        archived(taken)
