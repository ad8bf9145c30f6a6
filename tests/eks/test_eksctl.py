"""eksctl's form of the cluster: strict against eksctl's own schema, which finds each typo that a hand could make."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from invoke import Context, Exit

from cluster.clusterfile.checks import FieldError
from cluster.errors import ConfigError
from dlami.tasks.eks_services import eks_render
from eks.cluster import load_eks
from eks.eksctl import cluster_config

SCHEMA = json.loads((Path(__file__).parent / "schemas/eksctl-clusterconfig.schema.json").read_text())
VALIDATOR = jsonschema.Draft7Validator(SCHEMA)
HEAD = 'name = "demo"\n[access]\nssh_from = "203.0.113.7/32"\n'
SECOND = "us-east-1b"
ZONE = '[network]\nzone = "us-east-1d"\n'
RESERVED = 'reservation = "cr-0123456789abcdef0"\n'
FILES = {
    "default": HEAD + ZONE,
    "p5": HEAD + ZONE + '[nodes]\ninstance_type = "p5.48xlarge"\nworkers = 63\n[storage]\nfsx_gib = 1200\n',
    "spot": HEAD + ZONE + '[nodes]\ncapacity = "spot"\n',
    "block": HEAD + ZONE + '[nodes]\ninstance_type = "p5.48xlarge"\ncapacity = "capacity-block"\n' + RESERVED,
    "reserved": HEAD + ZONE + '[nodes]\ncapacity = "reservation"\n' + RESERVED,
    "no-gpus": HEAD + ZONE + '[nodes]\ninstance_type = "c7i.4xlarge"\n',
    "private": 'name = "demo"\n[access]\nmode = "ssm"\n' + ZONE,
    "existing": HEAD + '[network]\nvpc = "vpc-0123456789abcdef0"\n'
    'private_subnet = ["subnet-0123456789abcdef1", "subnet-0123456789abcdef2"]\n',
    "open": HEAD + ZONE + '[eks]\nversion = "1.36"\nallow_cidrs = ["198.51.100.0/24"]\n',
}


def config(folder: Path, text: str) -> dict[str, Any]:
    (folder / "cluster.toml").write_text(text)
    cluster = load_eks(str(folder))
    return cluster_config(cluster, "" if cluster.file.network.private_subnets else SECOND)


def errors(document: Any) -> list[str]:
    return [f"{e.json_path}: {e.message}" for e in VALIDATOR.iter_errors(document)]


@pytest.mark.parametrize("case", FILES)
def test_eksctl_takes_every_variant(case: str, tmp_path: Path) -> None:
    assert [] == errors(config(tmp_path, FILES[case]))


def test_it_says_what_the_cluster_file_says(tmp_path: Path) -> None:
    """As the tutorials want it: one zone, EFA with its placement group, and no node or API open to everybody."""
    document = config(tmp_path, FILES["open"])
    (nodes,) = document["managedNodeGroups"]
    assert ("demo-eks", "us-east-1", "1.36") == tuple(document["metadata"][k] for k in ("name", "region", "version"))
    assert (["us-east-1d"], 2, 2) == (nodes["availabilityZones"], nodes["desiredCapacity"], nodes["maxSize"])
    assert nodes["efaEnabled"] and nodes["volumeEncrypted"] and nodes["disablePodIMDS"] and nodes["privateNetworking"]
    assert ["203.0.113.7/32", "198.51.100.0/24"] == document["vpc"]["publicAccessCIDRs"]
    assert not config(tmp_path, FILES["private"])["vpc"]["clusterEndpoints"]["publicAccess"]
    (network,) = (one for one in document["addons"] if one["name"] == "vpc-cni")
    assert {"enableNetworkPolicy": "true"} == json.loads(network["configurationValues"]), "else no policy is obeyed"
    block = config(tmp_path, FILES["block"])["managedNodeGroups"][0]
    assert ("capacity-block", "cr-0123456789abcdef0") == (
        block["instanceMarketOptions"]["marketType"],
        block["capacityReservation"]["capacityReservationTarget"]["capacityReservationID"],
    )


def test_an_open_zone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FieldError, match=r"network\.zone: is empty, and eksctl must be told"):
        config(tmp_path, HEAD)
    assert issubclass(FieldError, ConfigError)


@pytest.mark.parametrize("second", ["", "us-east-1d", "us-west-1b"])
def test_no_second_zone_is_guessed(tmp_path: Path, second: str) -> None:
    """An account in Tokyo has no zone b, and in Virginia the guess may be the one in which EKS has no interfaces."""
    (tmp_path / "cluster.toml").write_text(FILES["default"])
    with pytest.raises(ConfigError, match=r"another zone of us-east-1 beside us-east-1d.*--second-zone.*use1-az3"):
        cluster_config(load_eks(str(tmp_path)), second)
    assert ["us-east-1d", SECOND] == config(tmp_path, FILES["default"])["availabilityZones"]


def test_it_is_written_by_eks_render(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a stack to ask: eksctl's cluster is made before there is any."""
    (tmp_path / "cluster.toml").write_text(FILES["default"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Exit, match="--second-zone is for --eksctl"):
        eks_render(Context(), "out", second_zone=SECOND)
    eks_render(Context(), "out", eksctl=True, second_zone=SECOND)
    assert config(tmp_path, FILES["default"]) == yaml.safe_load((tmp_path / "out/eksctl.yaml").read_text())
