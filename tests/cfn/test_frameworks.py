"""What can train on which instance type is said before anybody pays for it."""

import pytest
from moto.ec2.models.instance_types import INSTANCE_TYPES

from cfn import frameworks
from cluster.clusterfile.checks import FieldError
from cluster.clusterfile.instance_types import PYTORCH, TENSORFLOW, generation_of, known_types
from cluster.clusterfile.nodes import DLAMI
from cluster.inventory import ROOT

OWN = "ami-0123456789abcdef0"


@pytest.mark.parametrize("instance_type", ["p3.16xlarge", "p3dn.24xlarge", "p2.xlarge", "g3s.xlarge", "g4ad.xlarge"])
def test_what_the_image_has_no_driver_for_is_refused(instance_type: str) -> None:
    """With the source, and what to do; with an image of one's own it is a warning."""
    with pytest.raises(FieldError, match=r"supported_ec2_instances.*choose g4dn or later, or set nodes.ami"):
        frameworks.check_image(instance_type, DLAMI)
    frameworks.check_image(instance_type, OWN)
    (warning,) = frameworks.warnings_for(instance_type, OWN)
    assert OWN in warning and instance_type in warning


@pytest.mark.parametrize("instance_type", ["p6-b200.48xlarge", "p6-b300.48xlarge", "g7e.48xlarge"])
def test_what_tensorflow_does_not_know_is_a_warning(instance_type: str) -> None:
    """It names the source and what does train there."""
    frameworks.check_image(instance_type, DLAMI)
    (warning,) = frameworks.warnings_for(instance_type, DLAMI)
    assert "github.com/tensorflow/tensorflow/issues/111958" in warning and "train.resnet50-torch" in warning
    assert (PYTORCH,) == frameworks.trains_with(instance_type)


@pytest.mark.parametrize(
    "instance_type", ["c7i.4xlarge", "g4dn.xlarge", "g5.12xlarge", "p4d.24xlarge", "p5en.48xlarge"]
)
def test_all_others_train_with_both(instance_type: str) -> None:
    """And nothing is said of them."""
    frameworks.check_image(instance_type, DLAMI)
    assert [] == frameworks.warnings_for(instance_type, DLAMI)
    assert (TENSORFLOW, PYTORCH) == frameworks.trains_with(instance_type)


def test_every_gpu_type_that_is_known_has_a_generation_and_is_on_the_page() -> None:
    """A new family is looked up before it is offered; the page is what `inv docs` writes of the table."""
    page = (ROOT / "docs/stack.md").read_text()
    assert [] == [name for name in known_types() if generation_of(name) is None]
    assert page == frameworks.in_page(page), "run 'inv docs' and commit docs/stack.md"
    assert "RTX PRO 6000" in page.partition(frameworks.HEADING)[2].partition("\n## ")[0]


def test_the_table_of_types_is_what_ec2_describes() -> None:
    """By EC2's own description, as moto has recorded it: GPUs, vCPUs and EFA cards."""
    described = {name: INSTANCE_TYPES[name] for name in known_types()}
    assert [] == [
        name
        for name, own in known_types().items()
        if (own.gpus, own.vcpus, own.efa)
        != (
            described[name]["GpuInfo"]["Gpus"][0]["Count"],
            described[name]["VCpuInfo"]["DefaultVCpus"],
            described[name]["NetworkInfo"].get("EfaInfo", {}).get("MaximumEfaInterfaces", 0),
        )
    ]


@pytest.mark.parametrize("instance_type", ["g5g.xlarge", "p6e-gb200.36xlarge", "g4ad.xlarge"])
def test_nothing_of_ours_trains_on_arm64_or_without_nvidia(instance_type: str) -> None:
    """The locked packages are for x86-64 and CUDA."""
    assert () == frameworks.trains_with(instance_type)
    assert 1 == len(frameworks.warnings_for(instance_type, OWN))
