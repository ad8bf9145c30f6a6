"""The image: what is asked for is checked before anything is built; file, script and constants say the same."""

import re
from pathlib import Path
from typing import Any

import pytest

from cluster.eks import image
from cluster.eks.image_build import Build
from cluster.errors import ConfigError
from cluster.inventory import ROOT
from tests.typed_words import typed

DOCKERFILE = (ROOT / "scripts/image/Dockerfile").read_text()


def asked(**more: Any) -> Build:
    usual = {"tag": "a/b:1", "file": "/tmp/x.tar", "variant": "cpu", "base": "debian:12", "wheels": "", "root": ""}
    return Build.of(**{**usual, **more})


@pytest.fixture(autouse=True)
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """buildah and git are found, whatever this machine has."""
    for name in ("buildah", "git"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tag": "A b"}, "expected the name of an image"),
        ({"variant": "tpu"}, "give cpu or gpu"),
        ({"variant": "gpu", "base": ""}, "needs a --base with CUDA's compiler"),
        ({"wheels": "/nowhere"}, "has no wheel of Horovod"),
        ({"root": "/etc"}, "is not empty"),
        ({"file": "/nowhere/x.tar"}, "there is no folder /nowhere"),
        ({"base": ""}, "mmdebstrap missing here: apt-get install mmdebstrap"),
    ],
)
def test_what_cannot_be_built_is_refused_first(given: dict[str, str], said: str) -> None:
    """With the flag, and what to do."""
    with pytest.raises(ConfigError, match=re.escape(said)):
        asked(**given)


def test_what_would_be_built_is_said_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And nothing is built."""
    out = tmp_path / "x.tar"
    assert 0 == typed("eks.image", "--tag", "a/b:1", "--base", "debian:12", "--out", out, "--dry-run")
    assert (
        f"would build a/b:1 (cpu) on debian:12, packages fetched as requirements.lock has them, into {out}\n"
        == capsys.readouterr().out
    )
    assert not out.exists()


def test_the_image_is_as_documents_expect_it() -> None:
    """User by number (kubelet cannot judge a name), port, paths and sshd's settings are those of cluster.eks.image."""
    assert f"USER {image.UID}:{image.UID}\n" in DOCKERFILE
    assert f"WORKDIR {image.PROJECT}\nEXPOSE {image.SSH_PORT}\n" in DOCKERFILE
    assert f"useradd --uid {image.UID} --gid {image.UID} --create-home --shell /bin/bash {image.USER}\n" in DOCKERFILE
    assert f"COPY scripts/image/sshd_config {image.SSHD_CONFIG}\n" in DOCKERFILE
    settings = (ROOT / "scripts/image/sshd_config").read_text()
    assert f"Port {image.SSH_PORT}\nHostKey {image.SSH_FOLDER}/id_rsa\n" in settings


def test_only_what_runs_is_in_the_image_and_no_secret_of_a_build() -> None:
    """Host keys that a package makes would be everybody's; the installer's own list of packages builds it."""
    assert "rm -rf /etc/ssh/ssh_host_*" in DOCKERFILE
    assert "scripts/install.sh" in DOCKERFILE
    script = (ROOT / "scripts/image/build.sh").read_text()
    assert 'git -C "$root" archive HEAD' in script
