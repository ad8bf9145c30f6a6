"""The image of the nodes: first boot installs by apt, so another system is refused before anything is made."""

from typing import Any

import pytest
from designs import described

from cfn import image, plan
from cfn.aws import Aws
from cfn.image import check_release, check_system
from cluster.errors import ConfigError
from lab.aws import FakeAws
from tests.cfn.conftest import cluster

DLAMIS = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu"


@pytest.mark.parametrize(
    ("described", "system"),
    [
        ({"Name": "Deep Learning Base OSS Nvidia Driver GPU AMI (Amazon Linux 2023) 20260915"}, "Amazon Linux"),
        ({"Name": "al2023-ami-2023.5.20260901.0-kernel-6.1-x86_64"}, "al2023"),
        ({"Name": "amzn2-ami-hvm-2.0"}, "amzn"),
        ({"Name": "RHEL-9.4.0_HVM-20260601-x86_64", "PlatformDetails": "Red Hat Enterprise Linux"}, "RHEL"),
        ({"Name": "ours", "PlatformDetails": "SUSE Linux"}, "SUSE"),
        ({"Name": "ours", "Platform": "windows", "PlatformDetails": "Windows"}, "Windows"),
        ({"Name": "ours-7", "Description": "Rocky Linux 9 with CUDA"}, "Rocky"),
    ],
)
def test_another_system_is_refused_by_its_name(described: dict[str, Any], system: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"nodes.ami: .* is no Debian or Ubuntu \({system}\), and the nodes install by apt"
    ):
        check_system("ami-0123456789abcdef0", described)


@pytest.mark.parametrize(
    "name",
    [
        "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) 20260915",
        "ubuntu/images/hvm-ssd-gp3/ubuntu-resolute-26.04-amd64-server-20260901",
        "debian-11-amd64-20260901-1234",
        "debian-13-amd64-20260901-1234",
    ],
)
def test_a_release_with_another_python_is_refused_by_its_name(name: str) -> None:
    """On paid GPUs its nodes would fail at the runtime, minutes later."""
    with pytest.raises(ConfigError, match=r"neither Python 3.11 nor 3.12.*choose Ubuntu 24.04 or Debian 12"):
        check_release("ami-0123456789abcdef0", {"Name": name})


def test_bare_nodes_may_have_any_python(fake: FakeAws, account: Aws) -> None:
    """They install nothing."""
    ami = f"{DLAMIS}-ubuntu-22.04/latest/ami-id"
    plan.make(account, cluster(ami=ami))
    file = cluster(ami=ami, source="https://example.org/team/project.git")
    with pytest.raises(ConfigError, match=r"nodes.ami: .* has neither Python 3.11 nor 3.12"):
        image.image(account, file, described("g5.12xlarge"), "")


def test_the_plan_refuses_a_dlami_of_amazon_linux(fake: FakeAws, account: Aws) -> None:
    """By a sentence that names the field, the image and one to take instead; nothing is made."""
    plan.make(account, cluster(ami=f"{DLAMIS}-ubuntu-22.04/latest/ami-id"))
    with pytest.raises(
        ConfigError, match=r"amazon-linux-2023.* is no Debian or Ubuntu .*choose one that is, such as /aws"
    ):
        plan.make(account, cluster(ami=f"{DLAMIS}-amazon-linux-2023/latest/ami-id"))
