"""Lab hosts for the instances of the fake AWS's groups, with the instances' addresses and their user data.

So the real first boot runs on real hosts: mounts, keys, sshd and signals, with no code path of its own. The fake must
be reachable from the hosts: bind it to the lab's bridge address, with `nodes="none"`.
"""

import json
import os
import shutil
import subprocess
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path
from types import TracebackType
from typing import Any

from cluster.errors import ClusterError
from lab import lab as labs
from lab import machine, nodes
from lab.record import Lab, LabHost


def empty_lab(name: str, base: IPv4Network, slots: int) -> Lab:
    """Build a lab with its bridge and shared folder but without hosts. `slots` is what its hosts will have."""
    machine.require("a lab with a stack")
    assert slots > 0
    return labs.build(Lab(name=name, network=str(base), hosts=()))


class LabDriver:
    """Thread that creates and removes lab hosts as the fake's instances come and go, until the `with` block ends.

    The caller takes down the lab.
    """

    def __init__(self, lab: Lab, url: str, slots: int, image: Path | None = None) -> None:
        """Args:
        image: a folder with files that every host has from its start, like those of an AMI.
        """
        self.lab, self.url, self.slots, self.image = lab, url, slots, image
        self.hosts: dict[str, LabHost] = {}  # by instance id
        self.errors: list[str] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True, name="lab driver")
        self._boots = ThreadPoolExecutor(max_workers=8, thread_name_prefix="first boot")

    def __enter__(self) -> "LabDriver":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(timeout=30)
        self._boots.shutdown(wait=False, cancel_futures=True)

    def crash(self, instance: str) -> None:
        """Crash the instance's host, as by a power failure, and report it to EC2's status checks."""
        labs.crash(self.lab, self.hosts[instance])
        _ask(f"{self.url}/_fake/instances/{instance}", {"health": "Unhealthy"})

    def tell(self, instance: str, said: dict[str, str]) -> None:
        """Set additional metadata of the instance, by path."""
        _ask(f"{self.url}/_fake/metadata/{instance}", said)

    def _follow(self) -> None:
        version = -1
        while not self._ended.is_set():
            try:
                seen = _ask(f"{self.url}/_fake/instances?after={version}&timeout=2")
                version = seen["version"]
                self._match({i["id"]: i for i in seen["instances"]})
            except (ClusterError, OSError, subprocess.SubprocessError) as e:
                self.errors.append(f"{type(e).__name__}: {e}")
                self._ended.wait(0.2)

    def _match(self, wanted: dict[str, dict[str, Any]]) -> None:
        live = nodes.running(self.lab.name)
        for instance in [i for i in self.hosts if i not in wanted]:
            host = self.hosts.pop(instance)
            if host.name in live:
                labs.crash(self.lab, host)
            # The replacement may get the same address, as a new master always does.
            self.lab = _without(self.lab, host)
        fresh = [i for name, i in wanted.items() if name not in self.hosts]
        if not fresh:
            return
        made = [self._host(i, n) for n, i in enumerate(fresh)]
        if self.image:
            for host in made:
                shutil.copytree(self.image, self.lab.host_folder(host) / "upper", dirs_exist_ok=True)
        self.lab = labs.add(self.lab, made)
        for entry, host in zip(fresh, made, strict=True):
            self.hosts[entry["id"]] = host
            self._boots.submit(self._boot, entry["id"], host)

    def _host(self, entry: dict[str, Any], nth: int) -> LabHost:
        rank = max((h.rank for h in self.lab.hosts), default=-1) + 1 + nth
        return LabHost(
            rank=rank, name=f"{self.lab.name}-{entry['id'][-6:]}", address=entry["private_ip"], slots=self.slots
        )

    def _boot(self, instance: str, host: LabHost) -> None:
        """Run the instance's user data as root, once, as cloud-init does."""
        try:
            self._run_user_data(instance, host)
        except (OSError, ValueError, subprocess.SubprocessError) as e:
            if instance in self.hosts:
                self.errors.append(f"{host.name} did not boot: {type(e).__name__}: {e}")

    def _run_user_data(self, instance: str, host: LabHost) -> None:
        own = f"{self.url}/_fake/imds/{instance}"
        script = _user_data(own)
        environment = {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "AWS_ENDPOINT_URL": self.url,
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": own,
        }
        pid = nodes.running(self.lab.name).get(host.name)
        if pid is None:
            raise ProcessLookupError(f"{host.name} does not run")
        subprocess.run(
            ["nsenter", "-t", str(pid), "--all", "bash", "-s"],
            input=script,
            env=environment,
            timeout=600,
            check=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def _user_data(imds: str) -> bytes:
    def get(path: str, method: str, **headers: str) -> bytes:
        request = urllib.request.Request(
            f"{imds}/latest/{path}", method=method, headers={f"X-aws-ec2-metadata-{k}": v for k, v in headers.items()}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return bytes(answer.read())

    token = get("api/token", "PUT", **{"token-ttl-seconds": "60"}).decode()
    return get("user-data", "GET", token=token)


def _without(lab: Lab, host: LabHost) -> Lab:
    smaller = replace(lab, hosts=tuple(h for h in lab.hosts if h != host))
    smaller.write()
    return smaller


def _ask(url: str, said: dict[str, Any] | None = None) -> Any:
    request = urllib.request.Request(
        url, data=json.dumps(said).encode() if said else None, method="POST" if said else "GET"
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)
