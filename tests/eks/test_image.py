"""The image: what is asked for is checked before anything is built; file, script and constants say the same."""

import json
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cluster.eks import image, image_build
from cluster.eks.image_build import Build
from cluster.errors import ConfigError
from cluster.inventory import ROOT
from tests.eks.pods import IMAGE_VARIABLE
from tests.typed_words import typed

DOCKERFILE = (ROOT / "scripts/image/Dockerfile").read_text()


def asked(**more: Any) -> Build:
    usual = {"tag": "a/b:1", "file": "/tmp/x.tar", "variant": "cpu", "torch": False, "base": "debian:12"}
    return Build.of(**{**usual, "wheels": "", "root": "", **more})


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
        ({"variant": "gpu", "torch": True}, "a --base for GPUs brings its own"),
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


@pytest.mark.parametrize(("torch", "given"), [(False, "cpu no"), (True, "cpu yes")])
def test_the_build_is_told_what_was_asked_for(
    torch: bool, given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the environment of its script, which is another here: one that writes down what it was given."""
    script = tmp_path / "build.sh"
    script.write_text('#!/bin/bash\nexec >"$2"; echo "$VARIANT $TORCH"\n')
    script.chmod(0o755)
    monkeypatch.setattr(image_build, "SCRIPT", script)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.defpath}")

    made = asked(file=str(tmp_path / "x.tar"), torch=torch).run()

    assert f"{given}\n" == Path(made["file"]).read_text()
    assert ", with PyTorch)" in asked(torch=True).described()


def test_an_image_has_pytorch_or_is_not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tests do without is a failure in an image: here a folder of packages that lacks what it needs."""
    monkeypatch.setenv("PATH", os.defpath)
    for name in ("scripts/install-torch.sh", "requirements.lock"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    (tmp_path / "wheels").mkdir()
    given = {**os.environ, "DLAMI_CLUSTER_WHEELS": str(tmp_path / "wheels"), "PIP_FIND_LINKS": ""}
    words = [tmp_path / "scripts/install-torch.sh", "environment"]
    done = subprocess.run(words, env=given, capture_output=True, text=True)

    assert 1 == done.returncode, done.stderr
    assert "no environment for PyTorch: its other packages cannot be installed" in done.stderr
    assert not (tmp_path / ".torch/.installed").exists()


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
    assert f"ln -sT dlami-cluster/.torch {image.TORCH};" in DOCKERFILE
    script = (ROOT / "scripts/image/build.sh").read_text()
    assert 'git -C "$root" archive "$revision" --' in script


@pytest.mark.long
def test_an_unpacked_image_is_what_was_asked_for() -> None:
    """The one that DLAMI_TEST_IMAGE names: labels, a user who owns nothing but his home, no keys, compilers or packages."""
    folder = Path(os.environ.get(IMAGE_VARIABLE) or pytest.skip(f"{IMAGE_VARIABLE} names no unpacked image"))
    root = folder / "rootfs"
    config = json.loads((folder / "config.json").read_text())["OCIv1"]["config"]

    assert f"{image.UID}:{image.UID}" == config["User"]
    labels = {name.removeprefix("org.opencontainers.image."): value for name, value in config["Labels"].items()}
    assert re.fullmatch("[0-9a-f]{40}", labels["revision"])
    assert {"title", "description", "licenses", "version"} <= set(labels)
    assert not list(root.glob("etc/ssh/ssh_host_*"))
    assert not list(root.glob("usr/bin/*gcc*"))
    assert not (root / image.PROJECT.lstrip("/") / "wheels").exists()
    found = [p for top in ("opt", "usr", "etc") for p in (root / top).rglob("*") if not p.is_symlink()]
    assert 10_000 < len(found)
    assert [] == [p for p in found if may_write(p.stat())]


def may_write(of: os.stat_result) -> bool:
    """Whether the image's user may, who is in no group but his own."""
    return image.UID in (of.st_uid, of.st_gid) or bool(of.st_mode & stat.S_IWOTH)
