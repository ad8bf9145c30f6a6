"""`nodes.source = "checkout"`: first boot waits for what stack.create brings, from a repository that nobody can read."""

import os
import pwd
import subprocess
from dataclasses import replace as with_
from pathlib import Path

import pytest

from cfn import create, plan
from cfn.aws import Aws
from cfn.checkout import Checkout
from cluster.clusterfile.checks import FieldError
from cluster.clusterfile.model import Access, ClusterFile, Network, Nodes, Ssh
from cluster.errors import ConfigError
from lab import network
from lab.aws import FakeAws
from lab.aws.driver import LabDriver
from lab.record import SHARED
from tests.cfn.repositories import git
from tests.conftest import PATIENCE_S

PROJECT = "/opt/ours"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A checkout with a change that is not committed, and an environment that is there already, as no node builds one."""
    folder = tmp_path / "checkout"
    (folder / ".venv/bin").mkdir(parents=True)
    for name, text in {"tasks.py": "one", "cluster.toml": "mine", ".venv/bin/python": "#!/bin/sh\n"}.items():
        (folder / name).write_text(text)
    (folder / ".venv/bin/python").chmod(0o755)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-f", ".")
    git(folder, "commit", "-q", "-m", "one")
    (folder / "tasks.py").write_text("two")
    return folder


@pytest.fixture
def file(driver: LabDriver) -> ClusterFile:
    """1 + 1 nodes whose image has no project."""
    base = list(network.IPv4Network(driver.lab.network).subnets(new_prefix=25))
    return ClusterFile(
        name="private",
        shared=SHARED,
        project=PROJECT,
        ssh=Ssh(user="root", key=str(driver.lab.key)),
        access=Access(mode="ssm"),
        nodes=Nodes(instance_type="g5.xlarge", workers=1, boot_minutes=20, source="checkout"),
        network=Network(cidr=driver.lab.network, public_cidr=str(base[0]), private_cidr=str(base[1])),
    )


def test_all_nodes_have_the_checkout_from_where_stack_create_is_typed(
    driver: LabDriver, file: ClusterFile, account: Aws, repository: Path
) -> None:
    """As it is there, uncommitted changes too; what a cluster file says of this machine's way in does not stay."""
    told: list[str] = []

    def show(line: str) -> None:
        told.append(line)
        print(line)

    brought = Checkout(account, file, show, root=repository)
    hosts = create.create(account, plan.make(account, file), show, checkout=brought)

    assert 2 == len(hosts)
    assert 1 == told.count("  the checkout is brought to the master"), told
    for host in driver.hosts.values():
        there = driver.lab.host_folder(host) / "upper" / PROJECT.lstrip("/")
        assert "two" == (there / "tasks.py").read_text()
        assert not (there / "cluster.toml").exists()
    create.delete(account, file, show)


def test_a_master_that_nobody_brings_it_to_says_so(tmp_path: Path) -> None:
    """The step of the script, within its time; what has come is taken once, whole."""
    script = (Path(__file__).parents[2] / "scripts/first-boot.sh").read_text()
    begin, end = script.index("take_checkout() {"), script.index("\nproject() {")
    for name in ("life", "local"):
        (tmp_path / name).mkdir()
    who = pwd.getpwuid(os.geteuid()).pw_name
    told = {"SOURCE": "checkout", "LOGIN": who, "LIFE": str(tmp_path / "life"), "LOCAL": str(tmp_path / "local")}

    def fetch(seconds: int) -> "subprocess.CompletedProcess[str]":
        words = f'publish() {{ cp "$1" "$2"; }}\nas_login() {{ "$@"; }}\n{script[begin:end]}\nfetch_project'
        return subprocess.run(
            ["bash", "-euc", words], capture_output=True, text=True, timeout=PATIENCE_S,
            env={**os.environ, **told, "BOOT_SECONDS": str(seconds)},
        )  # fmt: skip

    done = fetch(2)
    assert (1, True) == (done.returncode, done.stdout.startswith("no checkout came: leave inv stack.create running"))
    (tmp_path / "local/arriving/project.tar.gz").write_text("whole")
    assert 0 == fetch(60).returncode
    assert "whole" == (tmp_path / "life/project.tar.gz").read_text()
    assert 0 == fetch(0).returncode, "a master that is replaced later takes what there is"


def test_what_must_not_leave_this_machine_is_refused_before_anything_is_made(
    fake: FakeAws, account_of_all: Aws, tmp_path: Path
) -> None:
    """And a cluster that could not be reached is refused by its file."""
    git(tmp_path, "init", "-q")
    (tmp_path / ".env").write_text("x")
    git(tmp_path, "add", ".")
    file = ClusterFile(name="x", access=Access(ssh_from="203.0.113.7/32", key_pair="k"), nodes=Nodes(source="checkout"))
    with pytest.raises(ConfigError, match=r"\.env: an environment file"):
        Checkout(account_of_all, file, print, root=tmp_path)
    said: list[str] = []
    (tmp_path / "tasks.py").write_text("x")
    git(tmp_path, "add", ".")
    git(tmp_path, "rm", "-q", "-f", ".env")
    brought = Checkout(account_of_all, file, said.append, root=tmp_path)
    assert (False, []) == (brought.bring(), said), "no master waits for it"
    with pytest.raises(FieldError, match="the checkout comes to the nodes over SSH"):
        with_(file, access=with_(file.access, key_pair="")).check_stack()
