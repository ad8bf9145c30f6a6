"""Fake AWS for trying the stack tasks by hand: its instances are simulated, or are lab hosts that really boot."""

import contextlib
import os
import threading
from ipaddress import IPv4Network
from typing import Any

from cfn.template.design import TAG
from cluster.clusterfile import text
from cluster.errors import ConfigError
from cluster.files import IS_CHECKOUT, write_atomically
from cluster.locate import lab_names
from lab.record import SHARED, Lab

# USD per hour, so that a plan has a price; the price list of the real AWS is asked for the real one.
PRICES = {"g5.xlarge": 1.006, "g5.12xlarge": 5.672, "g6.8xlarge": 2.0144, "m7i.large": 0.1008, "p4d.24xlarge": 21.96}
KINDS = ("lab", "ready", "none")
LAB_SCALE = 0.3  # for lab hosts, which really boot: 30 minutes of AWS take 9 here
SIMULATED_SCALE = 0.05
ENVIRONMENT = (
    "export AWS_ENDPOINT_URL={url} AWS_ACCESS_KEY_ID=fake AWS_SECRET_ACCESS_KEY=fake AWS_DEFAULT_REGION=us-east-1"
)


def serve(name: str, port: int, scale: float, nodes: str) -> None:
    """Run the fake AWS until Ctrl-C, then remove its lab.

    Args:
        port: 0 for a free one.
        scale: seconds here for one of AWS's; 0 for a default that fits the nodes.
        nodes: "lab" for lab hosts (needs root and a checkout), "ready" for simulated instances that become ready,
            "none" for instances that never do; "" for "lab" as root in a checkout, else "ready".
    Raises ConfigError for another value of `nodes`, or if the lab exists already.
    """
    nodes = nodes or ("lab" if os.geteuid() == 0 and IS_CHECKOUT else "ready")
    if nodes == "lab" and not IS_CHECKOUT:
        raise ConfigError(
            "lab hosts of the fake AWS boot a checkout, and this command was installed without one: "
            "give --nodes ready, or type it in a checkout"
        )
    if nodes not in KINDS:
        raise ConfigError(f"--nodes {nodes} is not known: give one of {', '.join(KINDS)}")
    with contextlib.suppress(KeyboardInterrupt):
        if nodes == "lab":
            _serve_lab(name, port, scale or LAB_SCALE)
        else:
            _serve_simulated(port, scale or SIMULATED_SCALE, nodes)


def _serve_simulated(port: int, scale: float, nodes: str) -> None:
    from lab.aws import start

    with start(port=port, scale=scale, nodes=nodes, tag_prefix=TAG) as fake:
        fake.world.prices.update(PRICES)
        print(ENVIRONMENT.format(url=fake.url), flush=True)
        threading.Event().wait()


def _serve_lab(name: str, port: int, scale: float) -> None:
    from lab import lab as labs
    from lab import network
    from lab.aws import start
    from lab.aws.driver import LabDriver, empty_lab

    if name in lab_names():
        raise ConfigError(f"there is a lab {name} already: 'inv lab.down --name {name}' first, or give another --name")
    with labs.locked():
        lab = empty_lab(name, network.free_network(), slots=1)
    try:
        with (
            start(host=lab.bridge_address, port=port, scale=scale, nodes="none", tag_prefix=TAG) as fake,
            LabDriver(lab, fake.url, slots=1),
        ):
            fake.world.prices.update(PRICES)
            path = lab.folder / "cluster.toml"
            write_atomically(path, text.render(cluster_values(lab)))
            print(f"{ENVIRONMENT.format(url=fake.url)} CLUSTER=lab:{name}", flush=True)
            print(f"# its cluster file: inv stack.create --file {path}", flush=True)
            threading.Event().wait()
    finally:
        labs.down(name)


def cluster_values(lab: Lab, workers: int = 3) -> dict[str, Any]:
    """Return cluster file fields whose instances can be hosts of this lab.

    They have its network, its key and its shared folder.
    """
    public, private = IPv4Network(lab.network).subnets(prefixlen_diff=1)
    return {
        "name": lab.name,
        "shared": SHARED,
        "project": str(lab.project),
        "access.mode": "ssm",  # a lab has no public addresses
        "nodes.instance_type": "g5.xlarge",
        "nodes.workers": workers,
        "network.cidr": lab.network,
        "network.public_cidr": str(public),
        "network.private_cidr": str(private),
        "ssh.user": "root",
        "ssh.key": str(lab.key),
    }
