"""The image: what is asked for is checked before anything is built; file, script and constants say the same."""

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import ConfigError
from cluster.inventory import ROOT
from eks import image, image_build, image_needs
from eks.image_build import Build
from tests.cluster.jobs_here import wait_until
from tests.conftest import PATIENCE_S
from tests.eks.pods import IMAGE_VARIABLE
from tests.processes import begun
from tests.typed_words import typed

DOCKERFILE = (ROOT / "scripts/image/Dockerfile").read_text()


def asked(**more: Any) -> Build:
    usual = {"tag": "a/b:1", "file": "/tmp/x.tar", "variant": "cpu", "torch": False, "base": "debian:12"}
    return Build.of(**{**usual, "wheels": "", "root": "", **more})


@pytest.fixture(autouse=True)
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """buildah and git are found, and room, whatever this machine has and whoever this is."""
    monkeypatch.setattr(image_needs, "ROOM", 0)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
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
    archive = (
        'echo "{\\"manifests\\": [{\\"digest\\": \\"sha256:$VARIANT $TORCH\\"}]}" >index.json; tar -cf "$2" index.json'
    )
    script.write_text(f'#!/bin/bash\ncd "${{2%/*}}"; {archive}\n')
    script.chmod(0o755)
    monkeypatch.setattr(image_build, "SCRIPT", script)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.defpath}")

    made = asked(file=str(tmp_path / "x.tar"), torch=torch).run()

    assert (f"sha256:{given}", (tmp_path / "x.tar").stat().st_size) == (made["digest"], made["bytes"])
    assert ", with PyTorch)" in asked(torch=True).described()


SLOW_TO_END = """\
#!/bin/bash
cd "${2%/*}"
bash -c 'trap "sleep 1; rm made; exit" TERM; touch made; while :; do sleep 0.1; done' &
wait
"""


@pytest.mark.seconds
@pytest.mark.parametrize("when", ["while it is waited for", "before its process is known"])
def test_ctrl_c_ends_when_all_that_was_made_is_gone(tmp_path: Path, when: str) -> None:
    """The first process of a build in a namespace of users ends at once, and what cleans up is behind it."""
    (tmp_path / "build.sh").write_text(SLOW_TO_END)
    (tmp_path / "build.sh").chmod(0o755)
    program = f"""if True:
        import subprocess, time
        from pathlib import Path
        from eks import image_build
        class Slow(subprocess.Popen):
            def __init__(self, *args, **options):
                super().__init__(*args, **options)
                if options.get("start_new_session"):
                    time.sleep(2)
        image_build.SCRIPT = Path("{tmp_path}/build.sh")
        if {when.startswith("before")}:
            image_build.subprocess.Popen = Slow
        file = Path("{tmp_path}/x.tar")
        image_build.Build(tag="x", file=file, variant="cpu", torch=False, base="", wheels=None, root=None).run()
    """
    words, usual = [sys.executable, "-c", program], {**os.environ, "PATH": os.defpath}
    said = tmp_path / "said"  # no pipe, which the last of them would hold open
    with said.open("w") as stderr, begun(words, cwd=ROOT, stderr=stderr, env=usual) as process:
        wait_until(lambda: (tmp_path / "made").exists() or process.poll() is not None, "the build is at work")
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_S)
        stays = (tmp_path / "made").exists()

    assert (False, True) == (stays, "KeyboardInterrupt" in said.read_text()), said.read_text()


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
    """User by number (kubelet cannot judge a name), port, paths and sshd's settings are those of eks.image."""
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


def test_equal_images_are_equal_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever, by whom and in which order their parts were written: an archive has none of it."""
    monkeypatch.setenv("PATH", os.defpath)
    made = []
    for names, mode, when in (("abc", 0o600, 1e9), ("cba", 0o664, 1.5e9)):
        folder = tmp_path / names / "blobs"
        folder.mkdir(parents=True)
        for name in names:
            (folder / name).write_text(name)
            (folder / name).chmod(mode)
            os.utime(folder / name, (when, when))
        if os.getuid() == 0:
            os.chown(folder, int(when) % 1000 + 7, 7)
        file = tmp_path / f"{names}.tar"
        pack = f". '{ROOT}/scripts/image/build.sh' && pack {folder.parent} {file} 1700000000"
        subprocess.run(["bash", "-c", pack], check=True)
        made.append(file.read_bytes())

    assert made[0] == made[1]
    with tarfile.open(file) as tar:
        kept = [(e.name, e.mode, e.uid, e.gid, int(e.mtime)) for e in tar]
    assert [("blobs", 0o755), *((f"blobs/{n}", 0o644) for n in "abc")] == [e[:2] for e in kept]
    assert {(0, 0, 1_700_000_000)} == {e[2:] for e in kept}


def test_nothing_of_the_building_machine_is_in_the_base() -> None:
    """Its name and resolvers, which mmdebstrap copies, its language and umask; and devices, which only root can make."""
    script = (ROOT / "scripts/image/build.sh").read_text()
    assert 'rm -f "$1/etc/hostname" "$1/etc/resolv.conf"' in script
    assert "--skip=output/dev" in script
    assert "umask 022\nexport LC_ALL=C.UTF-8 TZ=UTC" in script


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
    ours = [root / "etc" / name for name in ("hostname", "hosts", "resolv.conf")]
    assert [] == [p for p in ours if p.is_file() and p.stat().st_size], "the building machine's"
    compiled = [p for p in found if p.suffix == ".pyc" and not p.is_relative_to(root / "usr/share")]
    assert 10_000 < len(compiled)
    assert [] == [p for p in compiled if not p.read_bytes()[4] & 1], (
        "of files that were as old as they are nowhere else"
    )


def may_write(of: os.stat_result) -> bool:
    """Whether the image's user may, who is in no group but his own."""
    return image.UID in (of.st_uid, of.st_gid) or bool(of.st_mode & stat.S_IWOTH)
