"""What nodes.source names is pinned when the stack is made; the real git answers."""

import os
import pwd
import subprocess
from dataclasses import replace as with_
from pathlib import Path

import boto3
import pytest

from cfn import plan, source
from cfn.aws import Aws
from cluster.clusterfile.model import ClusterFile
from cluster.errors import ConfigError
from cluster.setup.onhost.project import known
from lab.aws import FakeAws
from tests.cfn.repositories import git
from tests.conftest import PATIENCE_S

ADDRESS = "https://example.org/team/project.git"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a commit, which git finds under an https address."""
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    commit(folder, "one")
    for name, value in {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{folder}.insteadOf",
        "GIT_CONFIG_VALUE_0": ADDRESS,
    }.items():
        monkeypatch.setenv(name, value)
    return folder


def commit(folder: Path, text: str) -> str:
    (folder / "tasks.py").write_text(text)
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", text)
    return git(folder, "rev-parse", "HEAD")


def with_source(file: ClusterFile, address: str) -> ClusterFile:
    return with_(file, nodes=with_(file.nodes, source=address))


def test_a_git_source_is_the_commit_of_that_day(file: ClusterFile, repository: Path) -> None:
    """Later commits change nothing for a stack that is there; `--source latest` forgets the pin."""
    aws, own = Aws("us-east-1"), with_source(file, ADDRESS)
    first = git(repository, "rev-parse", "HEAD")
    assert first == source.version(aws, own, None)
    second = commit(repository, "two")
    assert first == source.version(aws, own, {"Source": ADDRESS, "SourceVersion": first})
    assert second == source.version(aws, own, {"Source": ADDRESS})
    assert second == source.version(aws, own, {"Source": "https://example.org/other", "SourceVersion": first})


def test_an_address_that_cannot_be_read_is_refused_at_once(file: ClusterFile, repository: Path) -> None:
    """Not half an hour later by a node that waits for a password."""
    repository.rename(repository.with_name("away"))
    with pytest.raises(ConfigError, match=r"nodes\.source: .* cannot be read without a password"):
        source.version(Aws("us-east-1"), with_source(file, ADDRESS), None)


def test_first_boot_takes_that_commit_and_nothing_of_git(repository: Path, tmp_path: Path) -> None:
    """The lines of the script, run with the real git: the archive is the pinned commit's although the branch moved on."""
    first = git(repository, "rev-parse", "HEAD")
    commit(repository, "two")
    script = (Path(__file__).parents[2] / "scripts/first-boot.sh").read_text()
    begin = script.index("fetch_project() {")
    function = script[begin : script.index("\n}\n", begin) + 3]
    (tmp_path / "life").mkdir()
    (tmp_path / "local").mkdir()
    subprocess.run(
        ["bash", "-euc", f"publish() {{ cp $1 $2; }}\n{function}\nfetch_project"],
        check=True,
        timeout=PATIENCE_S,
        env={
            **os.environ,
            "SOURCE": ADDRESS,
            "SOURCE_VERSION": first,
            "LOCAL": str(tmp_path / "local"),
            "LIFE": str(tmp_path / "life"),
        },
    )
    (tmp_path / "out").mkdir()
    subprocess.run(
        ["tar", "-C", tmp_path / "out", "-xzf", tmp_path / "life/project.tar.gz"], check=True, timeout=PATIENCE_S
    )
    assert {"tasks.py": "one"} == {p.name: p.read_text() for p in (tmp_path / "out").iterdir()}


def test_what_first_boot_has_unpacked_is_known_to_inv_sync(tmp_path: Path) -> None:
    """The lines of the script: the project is there without who packed it, and what was in the archive is on a list."""
    script = (Path(__file__).parents[2] / "scripts/first-boot.sh").read_text()
    begin = script.index("\nproject() {")
    function = script[begin : script.index("\n}\n", begin) + 3]
    for folder in ("packed/cluster", "life"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("tasks.py", "cluster.toml", "cluster/old.py"):
        (tmp_path / "packed" / name).write_text("x")
    archive = tmp_path / "life/project.tar.gz"
    subprocess.run(["tar", "-C", tmp_path / "packed", "-czf", archive, "."], check=True, timeout=PATIENCE_S)
    subprocess.run(
        ["bash", "-euc", f'as_login() {{ "$@"; }}\nsay() {{ echo $@; }}\nwait_for() {{ :; }}\n{function}\nproject'],
        check=True,
        timeout=PATIENCE_S,
        env={
            **os.environ,
            "ROLE": "worker",
            "SOURCE": "",
            "LOGIN": pwd.getpwuid(os.geteuid()).pw_name,
            "LIFE": str(tmp_path / "life"),
            "PROJECT": str(tmp_path / "project"),
        },
    )
    assert {"tasks.py", "cluster", ".synced"} == {p.name for p in (tmp_path / "project").iterdir()}
    assert {"tasks.py", "cluster/old.py"} == known(str(tmp_path / "project"))


def test_an_archive_is_the_version_of_that_day(fake: FakeAws, file: ClusterFile, account: Aws) -> None:
    """Its entity tag is in the template, and S3 gives the node no other."""
    s3 = boto3.client("s3")
    s3.create_bucket(Bucket="code")
    own = with_source(file, "s3://code/project.tar.gz")
    with pytest.raises(ConfigError, match=r"nodes\.source: s3://code/project\.tar\.gz does not exist"):
        plan.make(account, own)
    tag = s3.put_object(Bucket="code", Key="project.tar.gz", Body=b"x")["ETag"].strip('"')
    assert f"SOURCE_VERSION='{tag}'" in plan.make(account, own).body
