"""README is true: what it says of the nodes is what the scripts put there."""

import re

from cluster.inventory import ROOT

README = (ROOT / "README.md").read_text()


def test_every_unit_that_a_stacks_nodes_run_is_named() -> None:
    """And no other: whoever runs a cluster wants to know what runs there."""
    scripts = "".join((ROOT / "scripts" / name).read_text() for name in ("services.sh", "first-boot.sh"))
    made = set(re.findall(r"etc/systemd/system/(dlami-[a-z]+)\.service", scripts)) | set(
        re.findall(r"^\s*unit (dlami-[a-z]+) ", scripts, re.MULTILINE)
    )

    assert made and made == set(re.findall(r"^\| `(dlami-[a-z]+)` ", README, re.MULTILINE))
    assert "no daemon" not in README and "no agent" not in README


def test_what_has_not_been_met_is_said_first() -> None:
    """Before the first command."""
    assert "has not met EC2 or EKS" in README.partition("    make demo")[0]
