"""Credentials of a node's role for our own programs: root reads them; a login user needs `sudo`.

No other user reaches the metadata service (scripts/metadata.sh), so ranks never get credentials.
As a program, as root: print them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from typing import Any

PROGRAM = "/usr/local/lib/dlami-cluster/node_role.py"  # this file, where only root can change it
_LIMIT_S = 20.0
_NAME = "dlami-node-role"


def session(**options: Any) -> Any:
    """Return a boto3 session that finds credentials in the usual places, and on a node of a stack the node's role."""
    import boto3
    import botocore.session
    from botocore.credentials import CredentialProvider, RefreshableCredentials

    if os.geteuid() == 0 or not os.path.exists(PROGRAM):
        return boto3.Session(**options)

    class RoleProvider(CredentialProvider):
        """Provider of the role's credentials, asked after the user's own ones."""

        METHOD = CANONICAL_NAME = _NAME

        def load(self) -> Any:
            found = _asked()
            return found and RefreshableCredentials.create_from_metadata(found, refresh_using=_asked, method=_NAME)

    core = botocore.session.get_session()
    core.get_component("credential_provider").insert_before("iam-role", RoleProvider())
    return boto3.Session(botocore_session=core, **options)


def _asked() -> dict[str, str] | None:
    """Return root's answer, or None if this user may not `sudo`."""
    words = ["sudo", "-n", "/usr/bin/python3", "-I", "-S", PROGRAM]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT_S)
        return dict(json.loads(done.stdout)) if done.returncode == 0 else None
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def main() -> int:
    """Print the credentials as JSON, with botocore's names. Return the exit code."""
    base = (os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or "http://169.254.169.254").rstrip("/") + "/latest/"
    first = urllib.request.Request(
        f"{base}api/token", method="PUT", headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    )
    with urllib.request.urlopen(first, timeout=5) as answer:
        head = {"X-aws-ec2-metadata-token": answer.read().decode()}

    def read(path: str) -> str:
        with urllib.request.urlopen(urllib.request.Request(base + path, headers=head), timeout=5) as answer:
            return str(answer.read().decode())

    folder = "meta-data/iam/security-credentials/"
    found = json.loads(read(folder + read(folder).split()[0]))
    names = (("access_key", "AccessKeyId"), ("secret_key", "SecretAccessKey"), ("token", "Token"))
    print(json.dumps({**{ours: found[theirs] for ours, theirs in names}, "expiry_time": found["Expiration"]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
