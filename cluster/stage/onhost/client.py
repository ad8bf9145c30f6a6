"""Configuration of boto3's S3 client and transfers for a stage, and texts for its errors."""

from __future__ import annotations

from typing import Any

from cluster.ssh.onhost import node_role

_NO_CREDENTIALS = (
    "this host has no credentials: give its role access to the bucket, or hand yours on: "
    "--env AWS_ACCESS_KEY_ID --env AWS_SECRET_ACCESS_KEY (and --env AWS_SESSION_TOKEN, if there is one)"
)

CONNECT_S = 5.0
ANSWER_S = 20.0  # without a byte, after which a request is retried; this is shorter than the limit for giving up


def client_of(endpoint: str | None) -> tuple[Any, Any]:
    """Return an S3 client, and the configuration of its transfers.

    Args:
        endpoint: URL of an S3-compatible service, None for AWS.
    """
    from boto3.s3.transfer import TransferConfig
    from botocore.config import Config

    config = Config(
        retries={"mode": "adaptive", "max_attempts": 12},
        max_pool_connections=64,
        connect_timeout=CONNECT_S,
        read_timeout=ANSWER_S,
    )
    client = node_role.session().client("s3", endpoint_url=endpoint, config=config)
    return client, TransferConfig(max_concurrency=8, multipart_threshold=32 << 20, multipart_chunksize=16 << 20)


def sentence(e: Exception) -> str:
    """Return the text of an error, with the file's name if there is one. If credentials lack, it has the remedy."""
    if type(e).__name__ in ("NoCredentialsError", "PartialCredentialsError"):
        return _NO_CREDENTIALS
    if isinstance(e, OSError) and e.strerror:
        return f"{e.filename}: {e.strerror.lower()}" if e.filename else e.strerror.lower()
    return " ".join(str(e).split()) or type(e).__name__
