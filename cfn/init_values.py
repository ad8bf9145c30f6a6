"""Values for a new cluster file: what the AWS profile, the account and the checkout already contain."""

import subprocess
from pathlib import Path
from typing import Any

import boto3

from cfn.aws import FAILED, Aws
from cluster.errors import ConfigError


def looked_up(folder: Path, given: dict[str, Any]) -> dict[str, Any]:
    """Return field -> value: what was given, the region of the AWS profile, the only key pair, this project's address.

    The address is that of the checkout's https remote.
    """
    found: dict[str, Any] = {}
    if where := given.get("region") or boto3.Session().region_name:
        found["region"] = where
        if key := _only_key_pair(where):
            found["access.key_pair"] = key
    if source := _source(folder):
        found["nodes.source"] = source
    return {**found, **{k: v for k, v in given.items() if v not in ("", None)}}


def region() -> str:
    """Return the region of the AWS profile. Raises ConfigError if it has none."""
    if found := boto3.Session().region_name:
        return found
    raise ConfigError("no AWS region is set here: give --region, or set AWS_DEFAULT_REGION")


def _only_key_pair(region: str) -> str:
    try:
        names = [k["KeyName"] for k in Aws(region).client("ec2").describe_key_pairs()["KeyPairs"]]
    except FAILED:
        return ""  # no credentials yet: the field stays empty and is explained
    return names[0] if len(names) == 1 else ""


def _source(folder: Path) -> str:
    asked = subprocess.run(
        ["git", "-C", str(folder), "remote", "get-url", "origin"], capture_output=True, text=True, check=False
    )
    address = asked.stdout.strip()
    return address if asked.returncode == 0 and address.startswith("https://") and "@" not in address else ""
