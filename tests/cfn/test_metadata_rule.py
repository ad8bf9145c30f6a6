"""Who reaches the metadata service of a node: root alone, unless the cluster file says so; our programs ask root."""

import http.server
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from designs import design

from cfn.template import template
from cluster.clusterfile.model import Access
from cluster.inventory import ROOT
from tests.cfn.installed_units import installed
from tests.cfn.policies import Request, grants
from tests.conftest import PATIENCE_S
from tests.other_users import NOBODY, open_folder, words_as

SCRIPT = ROOT / "scripts/metadata.sh"
LOGIN = "daemon"  # a user of every system, in the part of a user with a name
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
def test_root_and_named_users_alone_reach_it() -> None:
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
    assert "metadata.sh ec2-instance-connect\n" in (tmp_path / "a" / unit).read_text()
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


ROLE = {"access_key": "AKIDROLE", "secret_key": "s", "token": "t", "expiry_time": "2099-01-01T00:00:00Z"}
ASKED = """\
import boto3, sys
from cluster.ssh.onhost import node_role
node_role.PROGRAM = sys.argv[1]
for session in (boto3.Session(), node_role.session()):
    found = session.get_credentials()
    print(found and found.access_key)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="another user's processes need root")
@pytest.mark.parametrize(
    ("may_sudo", "own", "said"), [(True, "", "AKIDROLE"), (False, "", "None"), (True, "AKIDOWN", "AKIDOWN")]
)
def test_our_programs_get_the_role_by_sudo_and_no_other_program_does(may_sudo: bool, own: str, said: str) -> None:
    """What a rank of the login user's finds by boto3 is nothing; credentials of one's own come first."""
    with open_folder() as top:
        (top / "sudo").write_text(f'#!/bin/sh\n{"shift; exec" if may_sudo else "exit 1;"} "$@"\n')
        (top / "program").write_text(f"print({json.dumps(ROLE)!r})")
        (top / "sudo").chmod(0o755)
        environment = {"PATH": f"{top}:/usr/bin:/bin", "AWS_EC2_METADATA_DISABLED": "true", "PYTHONPATH": str(ROOT)}
        environment |= {"AWS_ACCESS_KEY_ID": own, "AWS_SECRET_ACCESS_KEY": "s"} if own else {}
        words = [*words_as(NOBODY), sys.executable, "-B", "-c", ASKED, str(top / "program")]
        done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, env=environment, cwd="/")
    assert f"{own or None}\n{said}\n" == done.stdout, done.stderr


def test_the_program_that_root_runs_reads_the_role(fake_metadata: str) -> None:
    """By a token, as the metadata service wants it."""
    words = [sys.executable, "-I", "-S", str(ROOT / "cluster/ssh/onhost/node_role.py")]
    environment = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": fake_metadata}
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, env=environment, check=True)
    assert ROLE == json.loads(done.stdout)


@pytest.fixture
def fake_metadata() -> Iterator[str]:
    """A metadata service with a role, which gives nothing without its token."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.answer("token")

        def do_GET(self) -> None:
            assert "token" == self.headers["X-aws-ec2-metadata-token"]
            theirs = {
                "AccessKeyId": "AKIDROLE",
                "SecretAccessKey": "s",
                "Token": "t",
                "Expiration": "2099-01-01T00:00:00Z",
            }
            self.answer("a-role" if self.path.endswith("/") else json.dumps(theirs))

        def answer(self, text: str) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_the_master_s_role_puts_the_end_off_and_grows_nothing() -> None:
    """Whoever has its credentials cannot have Auto Scaling start instances."""
    resources = json.loads(template.body(design()))["Resources"]
    given = resources["MasterRole"]["Properties"]["Policies"][0]["PolicyDocument"]["Statement"]
    own = [s for s in given if s["Action"] == "autoscaling:PutScheduledUpdateGroupAction"]
    for statement in own:
        statement["Resource"] = "*"
    put = "autoscaling:PutScheduledUpdateGroupAction"

    assert grants(own, Request(put, "group", {"autoscaling:MaxSize": "0"}))
    assert grants(own, Request(put, "group"))
    assert not grants(own, Request(put, "group", {"autoscaling:MaxSize": "64"}))
