"""What can train on which instance type is said before anybody pays for it."""

import json
from pathlib import Path

import pytest

from cfn import frameworks
from cfn.frameworks import PYTORCH, TENSORFLOW
from cluster.clusterfile.checks import FieldError
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


def known_types() -> list[str]:
    """Every type that the health checks know."""
    return list(json.loads((ROOT / "cluster/health/instances.json").read_text()))


@pytest.mark.parametrize(
    "instance_type", ["c7i.4xlarge", "g4dn.xlarge", "g5.12xlarge", "p4d.24xlarge", "p5en.48xlarge"]
)
def test_all_others_train_with_both(instance_type: str) -> None:
    """And nothing is said of them."""
    frameworks.check_image(instance_type, DLAMI)
    assert [] == frameworks.warnings_for(instance_type, DLAMI)
    assert (TENSORFLOW, PYTORCH) == frameworks.trains_with(instance_type)


def test_every_gpu_type_that_is_known_is_in_the_table_and_on_the_page() -> None:
    """A new family is looked up before it is offered."""
    page = Path(ROOT / "docs/stack.md").read_text().partition("## What can train where")[2].partition("\n## ")[0]
    missing = [name for name in known_types() if frameworks.generation_of(name) is None]
    assert [] == missing
    families = {name.partition(".")[0] for name in known_types()}
    assert [] == sorted(f for f in families if f.rstrip("sf") not in page)
