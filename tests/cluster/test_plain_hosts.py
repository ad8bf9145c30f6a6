"""docs/plain-hosts.md on lab hosts, every line: hosts that know and trust nobody, one of them with the operator's key."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.inventory import ROOT, load_cluster
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from lab import lab as labs
from lab.record import Lab
from tests.conftest import PATIENCE_S

PAGE = (ROOT / "docs/plain-hosts.md").read_text().partition("every line.\n")[2]
HOME = "/root/plain"
INV = f"""#!/bin/sh
exec env 'PYTHONPATH={ROOT}' '{ROOT}/.venv/bin/python' -m dlami.program "$@"
"""
# A lab has no NFS server: what the scripts would start is noted, and the mount is a folder that the lab shares.
EXPORTFS = "#!/bin/sh\necho exportfs $* >>/shared/nfs.log\n"
MOUNT_NFS = '#!/bin/sh\necho mount $* >>/shared/nfs.log\nmount --bind /shared/served "$2"\n'


pytestmark = pytest.mark.story  # what the page has made, and what each test looks at and changes of it


def blocks() -> list[str]:
    """The page's commands, those of one paragraph together."""
    found = re.findall(r"(?:^    .*\n)+", PAGE, re.MULTILINE)
    return [re.sub(r"^    ", "", block, flags=re.MULTILINE) for block in found]


@pytest.fixture(scope="module")
def plain_lab(lab_allowed: None) -> Iterator[Lab]:
    """Three hosts without what a lab gives them: no key of their own, nobody known."""
    name = f"p{os.getpid() % 10_000_000}"
    try:
        lab = labs.up(name, num_hosts=3, slots=1, may_mount=True)
        with Executor(load_cluster(f"lab:{name}")) as reach:
            hosts = load_cluster(f"lab:{name}").hosts
            reach.run(hosts, "rm /root/.ssh/id_ed25519 /root/.ssh/known_hosts").check()
            for path, text in (("/root/key.pem", lab.key.read_text()), ("/usr/local/bin/inv", INV)):
                reach.run(hosts[:1], f"umask 077; cat >{path}; chmod u+x {path}", stdin=text.encode()).check()
            for path, text in (("/usr/sbin/exportfs", EXPORTFS), ("/sbin/mount.nfs4", MOUNT_NFS)):
                reach.run(hosts, f"cat >{path}; chmod 755 {path}", stdin=text.encode()).check()
            served = "mkdir -p /shared/served /srv/dlami-cluster && mount --bind /shared/served /srv/dlami-cluster"
            reach.run(hosts[:1], served).check()
            data = "mkdir -p plain data/sample && head -c 100000 /dev/urandom >data/sample/train-00000-of-00001"
            reach.run(hosts[:1], data).check()
        yield lab
    finally:
        if labs.is_anything_left(name):
            labs.down(name)


@pytest.fixture(scope="module")
def walked(plain_lab: Lab) -> dict[str, str]:
    """What each block of the page said, by its first line."""
    said: dict[str, str] = {}
    for block in blocks():
        done = on_leader(plain_lab, block)
        expected = (0, 1) if block.startswith("inv health") else (0,)
        assert done.returncode in expected, f"{block}\n{done.stdout}{done.stderr}"
        said[block.splitlines()[0]] = done.stdout + done.stderr
    return said


def on_leader(lab: Lab, block: str, answer: str = "y\n") -> "subprocess.CompletedProcess[str]":
    """A block typed on the leader, at a terminal, with the lab's addresses for the page's; questions get the answer."""
    for number, host in ((12, lab.hosts[1]), (13, lab.hosts[2])):
        block = block.replace(f"10.0.0.{number}", host.address)
    words = ["ssh", "-F", "/dev/null", "-tt", "-i", str(lab.key), "-o", f"UserKnownHostsFile={lab.folder}/known_hosts"]
    words += ["-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes", f"root@{lab.hosts[0].address}"]
    script = f"stty -echo; mkdir -p {HOME}; cd {HOME}; set -e\n{block}"
    return subprocess.run([*words, script], input=answer, capture_output=True, text=True, timeout=PATIENCE_S)


def test_the_page_can_be_walked(walked: dict[str, str], plain_lab: Lab) -> None:
    """Every line ends well, and says what the page says of it."""
    first = walked["inv hosts.join --key ~/key.pem --slots 1 10.0.0.13"]
    assert "vouched for by nobody: compare it" in first
    assert f"are these the keys of {plain_lab.hosts[1].address}, {plain_lab.hosts[2].address}?" in first
    assert "3 hosts, 3 slots" in first
    shown = subprocess.run(
        [
            "ssh-keygen",
            "-lf",
            str(plain_lab.host_folder(plain_lab.hosts[1]) / "upper/etc/ssh/ssh_host_ed25519_key.pub"),
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()[1]
    assert shown in first, "the fingerprint is the one that its sshd has"
    names = [h.name for h in plain_lab.hosts]
    assert all(name in walked["inv hosts.list"] for name in names)
    trained = walked[next(line for line in walked if line.startswith("inv train.resnet50"))]
    assert "succeeded" in trained, trained
    own = walked["mkdir mine && cd mine && git init -q"]
    assert all(f"{n} of 3 is {name}" in own for n, name in enumerate(names)), own
    assert 2 == walked["inv jobs.list --all"].count("succeeded")
    with Executor(load_cluster(f"lab:{plain_lab.name}")) as reach:
        left = reach.run(load_cluster(f"lab:{plain_lab.name}").hosts, "ls /root/dlami-cluster-jobs/jobs").check()
    jobs = [re.findall(r"-(resnet50|where|sh)-", r.text) for r in left.values()]
    assert [["resnet50"], ["resnet50"], []] == jobs, "of a job that was removed nothing is left, on any host"


def test_one_folder_and_two_lines_are_all_that_is_changed(walked: dict[str, str], plain_lab: Lab) -> None:
    """One line in `authorized_keys` and one in `config`, one folder; the key is the same everywhere, for its user alone."""
    cluster = load_cluster(f"lab:{plain_lab.name}")
    with Executor(cluster) as reach:
        look = (
            "cd /root/.ssh; ls -A; ls dlami-cluster; stat -c %a dlami-cluster/plain; sha256sum <dlami-cluster/plain; "
            "wc -l <authorized_keys; cat config"
        )
        results = reach.run(cluster.hosts[1:], look, limits=Limits(total_s=60)).check()
    assert 1 == len({r.text for r in results.values()})
    lines = next(iter(results.values())).text.split()
    assert [
        "authorized_keys",
        "config",
        "dlami-cluster",
        "plain",
        "plain.conf",
        "plain.known_hosts",
        "plain.pub",
    ] == lines[:7]
    assert ("600", "2", "Include") == (lines[7], lines[10], lines[11])


def test_a_host_that_is_another_is_refused_by_name(walked: dict[str, str], plain_lab: Lab) -> None:
    """Its key is not the one that the leader knows it by; and a no changes nothing."""
    other = plain_lab.hosts[2].address
    swap = "sed -i '/^ADDRESS /s/AAAAC3NzaC1lZDI1NTE5AAAAI.*/AAAAC3NzaC1lZDI1NTE5AAAAI" + "A" * 43 + "/' known_hosts"
    refused = on_leader(plain_lab, f"{swap.replace('ADDRESS', other)}; inv hosts.join --dry-run")
    assert 1 == refused.returncode
    assert f"{other} shows the host key SHA256:" in refused.stdout + refused.stderr
    no = on_leader(plain_lab, f"sed -i '/^{other} /d' known_hosts; inv hosts.join", answer="n\n")
    assert (1, True) == (no.returncode, "nothing was changed" in no.stdout + no.stderr)
    shown = on_leader(plain_lab, "inv hosts.join --json")
    vouched = {h["address"]: h["vouched_for_by"] for h in json.loads(shown.stdout[shown.stdout.index("{") :])["hosts"]}
    assert {"localhost": "here", plain_lab.hosts[1].address: "known", other: "nobody"} == vouched
    again = on_leader(plain_lab, "inv hosts.join --yes && inv run -- true")
    assert 0 == again.returncode, again.stdout + again.stderr


def test_what_the_leader_serves_is_exported_and_mounted(walked: dict[str, str], plain_lab: Lab) -> None:
    """As far as a lab goes: the commands, and what stands in /etc/exports.d and /etc/fstab for the next boot."""
    log = (plain_lab.shared / "nfs.log").read_text()
    assert "exportfs -r" in log
    served = f"{plain_lab.hosts[0].address}:/srv/dlami-cluster /srv/dlami-cluster"
    assert 2 == log.count(f"mount {served}"), log


def test_a_laptop_joins_hosts_too(walked: dict[str, str], plain_lab: Lab, tmp_path: Path) -> None:
    """All of them named, the leader first; a host that does not let us in is named, and nothing is written."""
    leader, member = plain_lab.hosts[0].address, plain_lab.hosts[1].address

    def inv(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "invoke", *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env={**os.environ, "CLUSTER": str(tmp_path)},
        )

    words = ("hosts.join", "--name", "laptop", "--user", "root", "--slots", "2", "--yes", leader, member)
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True, timeout=PATIENCE_S)
    refused = inv(*words, "--key", str(other))
    assert (1, False) == (refused.returncode, (tmp_path / "hosts").exists()), refused.stdout + refused.stderr
    assert "it refused our SSH key (user root)" in refused.stderr
    joined = inv(*words, "--key", str(plain_lab.key))
    assert 0 == joined.returncode, joined.stdout + joined.stderr
    assert f"{leader} slots=2\n{member} slots=2\n" in (tmp_path / "hosts").read_text()
    said = inv("run", "--json", "--", "ls /root/.ssh/dlami-cluster/laptop").stdout.splitlines()
    assert [0, 0] == [json.loads(line)["exit_code"] for line in said]
    reached = inv("run", "--hosts", "0", "--", f"ssh -o BatchMode=yes {member} hostname")
    assert plain_lab.hosts[1].name in reached.stdout, "the leader's own ssh knows the way, as mpirun's does"
