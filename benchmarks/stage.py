"""Objects from S3 (moto's, on this machine) to lab hosts: `inv stage` beside a plain boto3 loop on every host.

As root: it makes a lab of its own. moto answers with one process, so this compares the two clients, not S3's speed.
"""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from cluster.ssh import connections
from cluster.inventory import ROOT, load_cluster
from lab import lab as labs
from cluster.ssh.fanout import Executor

sys.path.insert(0, str(Path(__file__).parent))
from rounds import rounds, row, seconds_of, write

LAB = "bstage"
PLAIN = """import boto3, os
s3 = boto3.client("s3", endpoint_url="{url}")
for page in s3.get_paginator("list_objects_v2").paginate(Bucket="bench"):
    for o in page["Contents"]:
        os.makedirs(os.path.dirname("/tmp/data/" + o["Key"]), exist_ok=True)
        s3.download_file("bench", o["Key"], "/tmp/data/" + o["Key"])
"""
CREDENTIALS = (
    "mkdir -p /root/.aws && printf '%s\\n' '[default]' aws_access_key_id=x aws_secret_access_key=x "
    "region=us-east-1 >/root/.aws/credentials"
)


def main(times: int = 5, hosts: int = 4, objects: int = 200, num_bytes: int = 100_000) -> None:
    """Measure, compare, write results/stage.json."""
    import boto3

    os.environ |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1"}
    lab = labs.up(LAB, hosts, 1)
    moto = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", lab.bridge_address, "-p", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert moto.stderr
        url = next(line.split()[-1] for line in moto.stderr if f"http://{lab.bridge_address}" in line)
        threading.Thread(target=moto.stderr.read, daemon=True).start()
        s3 = boto3.client("s3", endpoint_url=url)
        s3.create_bucket(Bucket="bench")
        for n in range(objects):
            s3.put_object(Bucket="bench", Key=f"train/{n:05}", Body=os.urandom(num_bytes))
        cluster = load_cluster(f"lab:{LAB}")
        with Executor(cluster) as reach:
            reach.run(cluster.hosts, CREDENTIALS).check()

            def clean() -> None:
                reach.run(cluster.hosts, "rm -rf /tmp/data").check()

            def ours() -> float:
                clean()
                return seconds_of(
                    [str(ROOT / ".venv/bin/inv"), "stage", "s3://bench/", "/tmp/data", "--endpoint", url],
                    env={**os.environ, "CLUSTER": f"lab:{LAB}"},
                    cwd=ROOT,
                )

            def plain() -> float:
                clean()
                began = time.perf_counter()
                reach.run(cluster.hosts, f"{cluster.python} -", stdin=PLAIN.format(url=url).encode()).check()
                return time.perf_counter() - began

            runs = rounds({"inv stage": ours, "plain boto3": plain}, times)
    finally:
        moto.terminate()
        moto.wait(20)
        connections.disconnect()
        labs.down(LAB)
    what = f"{hosts} hosts, {objects} objects of {num_bytes // 1000} kB each: inv stage, verified"
    write("stage", [row(runs, "inv stage", "plain boto3", label=what)])


if __name__ == "__main__":
    main()
