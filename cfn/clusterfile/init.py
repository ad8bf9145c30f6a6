"""The values of a new cluster file that can be looked up, so that the operator is not asked."""

import subprocess
from pathlib import Path
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from cfn.aws import Aws
from cluster.errors import ConfigError


def looked_up(folder: Path, given: dict[str, Any]) -> dict[str, Any]:
    """Field -> value: what was given, then the region of the AWS profile, the only key pair, this project's
    https address.
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
    """The region of the AWS profile. Raises ConfigError if it has none."""
    if found := boto3.Session().region_name:
        return found
    raise ConfigError("no AWS region is set here: give --region, or set AWS_DEFAULT_REGION")


def _only_key_pair(region: str) -> str:
    try:
        names = [k["KeyName"] for k in Aws(region).client("ec2").describe_key_pairs()["KeyPairs"]]
    except (ClientError, BotoCoreError):
        return ""  # no credentials yet: the field stays empty and is explained
    return names[0] if len(names) == 1 else ""


def _source(folder: Path) -> str:
    asked = subprocess.run(
        ["git", "-C", str(folder), "remote", "get-url", "origin"], capture_output=True, text=True, check=False
    )
    address = asked.stdout.strip()
    return address if asked.returncode == 0 and address.startswith("https://") and "@" not in address else ""
