"""Who reaches the metadata service of a node: root and the login user; nobody else, unless the cluster file says so."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from designs import design

from cfn.template import template
from cluster.clusterfile.model import Access
from cluster.inventory import ROOT
from tests.cfn.installed_units import installed
from tests.cfn.policies import Request, grants
from tests.conftest import PATIENCE_S

SCRIPT = ROOT / "scripts/metadata.sh"
LOGIN = "daemon"  # a user of every system, in the part of the login user
NETWORK = """\
ip link set lo up
ip link add v0 type veth peer name v1
ip addr add 10.9.9.9/24 dev v0
ip link set v0 up
ip link set v1 up
ip route add default via 10.9.9.1 dev v0
"""
ASK = """\
for uid in 0 $(id -u daemon) 12001; do
    for address in 169.254.169.254 169.254.169.253 10.1.2.3; do
        setpriv --reuid $uid --clear-groups /bin/bash -c "exec 3<>/dev/udp/$address/53" 2>/dev/null && echo $uid $address || true
    done
done
"""


def reached(*runs: str) -> set[str]:
    """Which user reaches which address after these runs of the script, in a network of its own."""
    text = NETWORK + "".join(f"{SCRIPT} {run}\n" for run in runs) + ASK
    words = ["unshare", "--net", "bash", "-euc", text]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    return {line for line in done.stdout.splitlines() if re.match(r"\d+ [\d.]+$", line)}


@pytest.mark.skipif(os.getuid() != 0, reason="a network namespace needs root")
def test_root_and_the_login_user_alone_reach_it() -> None:
    """The resolver and all other addresses stay open to everybody; running it again changes nothing, and it opens again."""
    login = str(int(subprocess.run(["id", "-u", LOGIN], capture_output=True, text=True, check=True).stdout))
    others = {f"{u} {a}" for u in ("0", login, "12001") for a in ("169.254.169.253", "10.1.2.3")}
    everybody = others | {f"{u} 169.254.169.254" for u in ("0", login, "12001")}

    assert everybody == reached()
    closed = everybody - {"12001 169.254.169.254"}
    assert closed == reached(f"{LOGIN} nobody-of-this-name")
    assert closed == reached(LOGIN, LOGIN)
    assert closed - {f"{login} 169.254.169.254"} == reached(LOGIN, "nobody-of-this-name")
    assert everybody == reached(LOGIN, "--open")


def test_first_boot_s_services_close_it_unless_ranks_are_to_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the cluster file's word, which the node keeps; networkd leaves the rules alone."""
    unit = "etc/systemd/system/dlami-metadata.service"
    assert unit in installed(tmp_path / "a", "worker")
    assert "metadata.sh ubuntu ec2-instance-connect\n" in (tmp_path / "a" / unit).read_text()
    for credentials in (False, True):
        access = Access(ssh_from="203.0.113.7/32", rank_credentials=credentials)
        assert credentials is ("RANK_CREDENTIALS='1'" in template.body(design(access=access)))
    script = (ROOT / "scripts/first-boot.sh").read_text()
    (line,) = (one for one in script.splitlines() if ">/etc/dlami-cluster.conf" in one)
    assert '"${!RANK_C@}"' in line
    assert (
        "ManageForeignRoutingPolicyRules=no"
        in (tmp_path / "a/etc/systemd/networkd.conf.d/60-dlami-cluster.conf").read_text()
    )


def test_the_master_s_role_puts_the_end_off_and_grows_nothing() -> None:
    """Whoever has its credentials cannot have Auto Scaling start instances."""
    import json

    resources = json.loads(template.body(design()))["Resources"]
    given = resources["MasterRole"]["Properties"]["Policies"][0]["PolicyDocument"]["Statement"]
    own = [s for s in given if s["Action"] == "autoscaling:PutScheduledUpdateGroupAction"]
    for statement in own:
        statement["Resource"] = "*"
    put = "autoscaling:PutScheduledUpdateGroupAction"

    assert grants(own, Request(put, "group", {"autoscaling:MaxSize": "0"}))
    assert grants(own, Request(put, "group"))
    assert not grants(own, Request(put, "group", {"autoscaling:MaxSize": "64"}))
