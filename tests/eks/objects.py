"""An S3 with five objects, which pods or processes bring to their disks."""

import contextlib
from collections.abc import Iterator

import pytest

from tests import fake_s3

KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1"}


@contextlib.contextmanager
def five_objects(address: str) -> Iterator[str]:
    """Where it serves `s3://bucket/in/0` to `4`, a thousand bytes each, until the block is left."""
    boto3 = pytest.importorskip("boto3")
    with fake_s3.serving(address) as url:
        own = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing", "region_name": "us-east-1"}
        client = boto3.client("s3", endpoint_url=url, **own)
        client.create_bucket(Bucket="bucket")
        for number in range(5):
            client.put_object(Bucket="bucket", Key=f"in/{number}", Body=bytes([number]) * 1000)
        yield url
