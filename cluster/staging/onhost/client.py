"""boto3's client and its transfer layer as a stage wants them, and what went wrong in a sentence."""

from __future__ import annotations

from typing import Any

_NO_CREDENTIALS = (
    "this host has no credentials: give its role access to the bucket, or hand yours on: "
    "--env AWS_ACCESS_KEY_ID --env AWS_SECRET_ACCESS_KEY (and --env AWS_SESSION_TOKEN, if there is one)"
)

CONNECT_S = 5.0
ANSWER_S = 20.0  # without a byte; then a request is put again, before S3 is given up as silent


def client_of(endpoint: str | None) -> tuple[Any, Any]:
    """A client of S3, or of what answers at this address as S3 does, and how its transfers go."""
    import boto3
    from boto3.s3.transfer import TransferConfig
    from botocore.config import Config

    config = Config(
        retries={"mode": "adaptive", "max_attempts": 12},
        max_pool_connections=64,
        connect_timeout=CONNECT_S,
        read_timeout=ANSWER_S,
    )
    client = boto3.client("s3", endpoint_url=endpoint, config=config)
    return client, TransferConfig(max_concurrency=8, multipart_threshold=32 << 20, multipart_chunksize=16 << 20)


def sentence(e: Exception) -> str:
    """What went wrong: what to do without credentials, else with the file's name if there is one."""
    if type(e).__name__ in ("NoCredentialsError", "PartialCredentialsError"):
        return _NO_CREDENTIALS
    if isinstance(e, OSError) and e.strerror:
        return f"{e.filename}: {e.strerror.lower()}" if e.filename else e.strerror.lower()
    return " ".join(str(e).split()) or type(e).__name__
