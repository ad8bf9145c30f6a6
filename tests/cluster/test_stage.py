"""Data from S3 to every host and back, against a fake S3 that lab hosts reach, with its bad moments."""

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from cluster.hosts import Host
from cluster.inventory import ROOT, Cluster
from cluster.ssh import capture
from cluster.ssh.fanout import Executor
from cluster.stage import stage as staging
from cluster.stage.onhost.etag import etag_of, is_checksum
from lab import lab as labs
from lab.record import Lab
from tests.cluster.lab_s3 import BUCKET
from tests.conftest import PATIENCE_S, Inv, wait_for


class Flaky(http.server.BaseHTTPRequestHandler):
    """S3 behind a proxy that answers some requests with SlowDown and hangs up in the middle of others."""

    upstream = ""
    slow_downs = hang_ups = 0

    def answer(self) -> None:
        kind = type(self)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.command == "GET" and kind.slow_downs > 0:
            kind.slow_downs -= 1
            text = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
            self.reply(503, {"Content-Length": str(len(text))}, text)
            return
        request = urllib.request.Request(
            kind.upstream + self.path, data=body or None, method=self.command, headers=dict(self.headers)
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answered:
                code, headers, content = answered.status, dict(answered.headers), answered.read()
        except urllib.error.HTTPError as e:
            code, headers, content = e.code, dict(e.headers), e.read()
        if self.command == "GET" and len(content) > 100_000 and kind.hang_ups > 0:
            kind.hang_ups -= 1
            self.reply(code, headers, content[:50_000])
            self.connection.close()
            return
        self.reply(code, headers, content)

    def reply(self, code: Any, headers: Any, content: Any) -> None:
        self.send_response(code)
        for name, value in headers.items():
            if name.lower() not in ("connection", "transfer-encoding", "server", "date"):
                self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = answer  # noqa: N815

    def log_message(self, *words: Any) -> None:
        """Nothing."""


def asked(s3: Any, source: Any, target: Any, url: Any = None, **options: Any) -> Any:
    return staging.request_of(source, target, endpoint=url or s3.url, **options)


def fill(s3: Any, sizes: Any) -> Any:
    contents = {f"train/{name}": os.urandom(size) for name, size in sizes.items()}
    for key, data in contents.items():
        s3.put_object(Bucket=BUCKET, Key=key, Body=data)
    return contents


@pytest.mark.promise("stage")
def test_every_host_gets_everything_and_a_second_run_moves_nothing(
    s3: Any, cluster: Cluster, reach: Executor, hosts: Any
) -> None:
    """Names with blanks and quotes, empty and multi-part objects; interrupted or repeated, what is there stays."""
    contents = fill(s3, {"a b'c": 1000, "empty": 0, "deep/er/x": 70_000})
    s3.upload_file(__file__, BUCKET, "train/large")
    want = asked(s3, f"s3://{BUCKET}/train/", "/root/data")
    first = staging.stage(reach, hosts, want, python=cluster.python)
    second = staging.stage(reach, hosts, want, python=cluster.python)

    assert [None] * 4 == [s.error for s in first], first
    assert {(4, 0)} == {(s.said["files"], s.said["skipped"]) for s in first}
    assert {(0, 4, 0)} == {(s.said["files"], s.said["skipped"], s.said["bytes"]) for s in second}
    sums = reach.run(hosts, 'cd /root/data && md5sum deep/er/x "a b\'c" | cut -c1-32').check()
    expected = [hashlib.md5(contents[f"train/{n}"]).hexdigest() for n in ("deep/er/x", "a b'c")]
    assert {tuple(expected)} == {tuple(r.text.split()) for r in sums.values()}


def test_a_stage_that_says_more_than_memory_holds_has_its_outcome(
    s3: Any, cluster: Cluster, reach: Executor, hosts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day's progress goes to the disk, and how it went is said last; an error, too."""
    fill(s3, {"a": 1000})
    monkeypatch.setattr(capture, "HEAD_BYTES", 1)
    monkeypatch.setattr(capture.MemoryBudget.__init__, "__defaults__", (1, 1))
    well, badly = (
        staging.stage(reach, hosts[:2], asked(s3, f"s3://{BUCKET}/{what}", "/root/data"), python=cluster.python)
        for what in ("train", "nothing")
    )

    assert [(None, 1)] * 2 == [(s.error, s.said["files"]) for s in well]
    assert all("no object is called" in str(s.error) for s in badly), badly


def test_a_bad_s3_costs_time_and_nothing_else(s3: Any, lab: Lab, cluster: Cluster, reach: Executor, hosts: Any) -> None:
    """It answers SlowDown and drops connections in the middle of an object."""
    contents = fill(s3, {str(n): 300_000 for n in range(6)})
    Flaky.upstream, Flaky.slow_downs, Flaky.hang_ups = s3.url, 6, 4
    proxy = http.server.ThreadingHTTPServer((lab.bridge_address, 0), Flaky)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    url = f"http://{lab.bridge_address}:{proxy.server_port}"
    staged = staging.stage(
        reach, hosts[:2], asked(s3, f"s3://{BUCKET}/train/", "/root/data", url), python=cluster.python
    )
    proxy.shutdown()
    proxy.server_close()

    assert (0, 0) == (Flaky.slow_downs, Flaky.hang_ups)
    assert [None, None] == [s.error for s in staged]
    sums = reach.run(hosts[:2], "cd /root/data && md5sum 0 1 2 3 4 5 | cut -c1-32; ls -A | wc -l").check()
    expected = [*(hashlib.md5(contents[f"train/{n}"]).hexdigest() for n in range(6)), "6"]
    assert {tuple(expected)} == {tuple(r.text.split()) for r in sums.values()}


def test_no_bucket_and_no_access_are_told(s3: Any, cluster: Cluster, reach: Executor, hosts: Any) -> None:
    """Per host, S3's own words."""
    staged = staging.stage(reach, hosts[:1], asked(s3, "s3://nothere/x", "/root/data"), python=cluster.python)

    assert "NoSuchBucket" in staged[0].error


@pytest.mark.promise("stage")
def test_inv_stage_says_what_each_host_got(inv: Inv, s3: Any, hosts: Any) -> None:
    """A line per host with its rate; JSON for programs."""
    fill(s3, {"x": 2_000_000})
    done = inv("stage", f"s3://{BUCKET}/train/", "/root/data", "--endpoint", s3.url)
    again = inv("stage", f"s3://{BUCKET}/train/", "/root/data", "--endpoint", s3.url, "--json")

    assert 4 == done.stdout.count("1 moved, 2.0 MB, "), done.stderr
    assert [1] * 4 == [json.loads(line)["skipped"] for line in again.stdout.splitlines()]


def test_hosts_without_credentials_get_them_from_here(inv: Inv, s3: Any, cluster: Cluster, reach: Executor) -> None:
    """As with a lab's fake AWS: the error says how, and they are in no list of processes and on no disk."""
    fill(s3, {"x": 100})
    words = ("stage", f"s3://{BUCKET}/train", "/root/data", "--endpoint", s3.url)
    try:
        without = inv(*words, "--env", "AWS_EC2_METADATA_DISABLED=true")
        handed = ("--env", "AWS_ACCESS_KEY_ID", "--env", "AWS_SECRET_ACCESS_KEY")
        planned = inv(*words, *handed, "--dry-run")
        there = reach.run(cluster.hosts, "ls -A /root/data 2>/dev/null || true")
        done = inv(*words, *handed)
    finally:
        reach.run(cluster.hosts, "rm -rf /root/data").check()

    assert 1 == without.returncode
    assert 1 == without.stdout.count("--env AWS_ACCESS_KEY_ID --env AWS_SECRET_ACCESS_KEY"), without.stdout
    assert "(4)  FAILED: " in without.stdout, "once for all hosts"
    assert "(4)  would move 1, 0.0 MB; 0 are there" in planned.stdout, planned.stderr
    assert {""} == {r.text for r in there.values()}
    assert (0, 4) == (done.returncode, done.stdout.count("1 moved")), done.stderr


def test_an_interrupted_stage_leaves_no_process_and_no_part(
    inv: Inv, s3: Any, lab: Lab, cluster: Cluster, reach: Executor, hosts: Any
) -> None:
    """Ctrl-C on the operator's side."""
    fill(s3, {"x": 20_000_000})
    for host in lab.hosts:
        labs.slow(lab, host, mbit=20, delay_ms=None)
    running = subprocess.Popen(
        [sys.executable, "-m", "invoke", "stage", f"s3://{BUCKET}/train/", "/root/data", "--endpoint", s3.url],
        cwd=ROOT,
        env={**os.environ, "CLUSTER": f"lab:{lab.name}"},
        stderr=subprocess.DEVNULL,
    )
    parts = "ls -A /root/data 2>/dev/null | wc -l"
    wait_for(lambda: all("1\n" == r.text for r in reach.run(hosts, parts).values()), 60, "all of them receive")
    running.send_signal(2)
    running.wait(PATIENCE_S)
    labs.heal(lab, lab.hosts)

    assert {""} == {r.text for r in reach.run(hosts, "pgrep -fa '[s]tage.onhost' || true").values()}
    assert {"0\n"} == {r.text for r in reach.run(hosts, parts).values()}


def test_etag_of_parts(tmp_path: Path) -> None:
    """As S3 computes it: MD5 of the parts' MD5s, and their number."""
    data = os.urandom(2_500_000)
    (tmp_path / "f").write_bytes(data)
    parts = [hashlib.md5(data[n : n + 1_000_000]).digest() for n in range(0, len(data), 1_000_000)]

    with (tmp_path / "f").open("rb") as file:
        assert hashlib.md5(data).hexdigest() == etag_of(file, None)
        assert f"{hashlib.md5(b''.join(parts)).hexdigest()}-3" == etag_of(file, 1_000_000)
    assert is_checksum({"ETag": f'"{"0" * 32}-3"'})
    assert not is_checksum({"ETag": f'"{"0" * 32}"', "ServerSideEncryption": "aws:kms"})


def test_one_host_has_no_shared_folder(reach: Executor) -> None:
    """Nobody to share with."""
    assert not staging.is_shared(reach, [Host(rank=0, address="localhost", slots=1)], "/tmp")
