"""One fake AWS for all tests, empty before each; fake keys, so that no test can spend money."""

import json
import os
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # designs.py is beside the tests

from cfn.aws import Aws
from cfn.template.design import TAG
from cluster.clusterfile.model import Access, ClusterFile, Nodes
from lab import lab as labs
from lab import network
from lab.aws import FakeAws, start
from lab.aws.driver import LabDriver, empty_lab
from tests.conftest import PATIENCE_S

SCALE = 0.05  # our seconds for one of AWS's: a time-out of 30 minutes takes 90 s, longer than any test


@pytest.fixture(scope="session")
def aws() -> Iterator[FakeAws]:
    """The fake, and the environment that points boto3 at it."""
    with start(scale=SCALE, tag_prefix=TAG) as fake, pytest.MonkeyPatch.context() as patch:
        for name in [n for n in os.environ if n.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in {
            "AWS_ENDPOINT_URL": fake.url,
            "AWS_ACCESS_KEY_ID": "fake",
            "AWS_SECRET_ACCESS_KEY": "fake",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }.items():
            patch.setenv(name, value)
        yield fake


@pytest.fixture
def fake(aws: FakeAws) -> FakeAws:
    """The fake, empty."""
    aws.world.scale, aws.world.nodes, aws.world.page_size, aws.world.resource_seconds = SCALE, "ready", 100, 0.0
    aws.reset()
    return aws


@pytest.fixture(scope="session")
def account_of_all(aws: FakeAws) -> Aws:
    """Clients are slow to make: one set for all tests of one fake."""
    return Aws("us-east-1")


@pytest.fixture
def account(request: pytest.FixtureRequest) -> Aws:
    """The account whose AWS is the fake: the driver's own where a test has lab hosts."""
    if "driver" in request.fixturenames:
        request.getfixturevalue("driver")
        return Aws("us-east-1")
    return request.getfixturevalue("account_of_all")


@pytest.fixture
def hurried(fake: FakeAws) -> FakeAws:
    """The fake with time-outs that come soon: 30 minutes take 1.8 s."""
    fake.world.scale = 0.001
    return fake


@pytest.fixture
def scene(fake: FakeAws) -> Callable[..., Any]:
    """Sets something on the fake by its own door: scene("capacity", {"g5.12xlarge": 0})."""

    def send(what: str, said: dict[str, Any]) -> Any:
        request = urllib.request.Request(f"{fake.url}/_fake/{what}", data=json.dumps(said).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.load(answer)

    return send


@pytest.fixture
def file() -> ClusterFile:
    """A small cluster: 1 master and 3 workers."""
    return cluster()


def cluster(**nodes: Any) -> ClusterFile:
    """A valid cluster file with the given [nodes] fields."""
    return ClusterFile(name="demo", nodes=Nodes(**{"workers": 3, **nodes}), access=Access(ssh_from="203.0.113.7/32"))


LAB_SCALE = 0.3  # where machines really boot: 30 minutes of AWS's are 9 of ours


@pytest.fixture
def image() -> Path | None:
    """The files of the lab hosts' AMI, besides this machine's."""
    return None


@pytest.fixture
def driver(lab_allowed: None, aws: FakeAws, image: Path | None) -> Iterator[LabDriver]:
    """A lab without hosts, and a fake that reaches it; both gone at the end."""
    name = f"c{os.getpid() % 10_000_000}"
    with labs.locked():
        lab = empty_lab(name, network.free_network(), slots=2)
    try:
        with (
            start(host=lab.bridge_address, scale=LAB_SCALE, nodes="none", tag_prefix=TAG) as fake,
            pytest.MonkeyPatch.context() as patch,
        ):
            fake.reset()  # moto is one per process, and the session's fake has used it
            patch.setenv("AWS_ENDPOINT_URL", fake.url)
            with LabDriver(lab, fake.url, slots=2, image=image) as driver:
                yield driver
                _tell(driver)
    finally:
        labs.down(name)


def _tell(driver: LabDriver) -> None:
    """What happened to its hosts, shown after a test that failed."""
    print(*driver.errors, sep="\n")
    logs = [
        *driver.lab.shared.glob(".dlami-cluster/*/boot/*.log"),
        *driver.lab.folder.glob("*/upper/run/*/first-boot.log"),
    ]
    for log in sorted(logs):
        print(f"== {log}", *log.read_text(errors="replace").splitlines()[-20:], sep="\n")
