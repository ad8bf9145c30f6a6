"""An S3 with five objects, which pods or processes bring to their disks."""

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1"}


@contextlib.contextmanager
def five_objects(address: str) -> Iterator[str]:
    """Where it serves `s3://bucket/in/0` to `4`, a thousand bytes each, until the block is left."""
    boto3 = pytest.importorskip("boto3")
    words = [sys.executable, "-m", "moto.server", "-H", address, "-p", "0"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as server:
        try:
            url = next(line.split()[-1] for line in server.stderr or () if "Running on http://" in line)
            threading.Thread(target=lambda: [None for _ in server.stderr or ()], daemon=True).start()
            own = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing", "region_name": "us-east-1"}
            client = boto3.client("s3", endpoint_url=url, **own)
            client.create_bucket(Bucket="bucket")
            for number in range(5):
                client.put_object(Bucket="bucket", Key=f"in/{number}", Body=bytes([number]) * 1000)
            yield url
        finally:
            server.kill()
