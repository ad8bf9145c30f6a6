"""Stand-ins for `aws` and `session-manager-plugin`: they lead to a lab host's port and refuse what the real ones refuse.

Run as programs, with the standard library only. What they refuse, and in which words, is that of AWS CLI 1.45 and
2.9 (tried), and of later ones (read); what there is to reach is in the file that STAND_IN_AWS names, beside which each session is logged.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

RESPONSE = "AWS_SSM_START_SESSION_RESPONSE"  # in which the CLI tells the plugin its session
PROFILE = ("--region", "--profile", "--output")


def world() -> dict[str, Any]:
    """Instances and their addresses by id, whether there is an endpoint, which version of the CLI this is, whether it hangs."""
    return dict(json.loads(Path(os.environ["STAND_IN_AWS"]).read_text()))


def refuse(text: str, code: int) -> None:
    """As the CLI does: an empty line first."""
    sys.stderr.write(f"\n{text}\n")
    sys.exit(code)


def aws(words: list[str]) -> None:
    """The two operations by which one gets to an instance."""
    if world()["hangs"]:
        time.sleep(600)
    operation, given = words[:2], dict(zip(words[2::2], words[3::2], strict=True))
    if "AWS_ACCESS_KEY_ID" not in os.environ:
        refuse('Unable to locate credentials. You can configure credentials by running "aws configure".', 253)
    if "--region" not in given:
        refuse('You must specify a region. You can also configure your region by running "aws configure".', 253)
    if operation == ["ssm", "start-session"]:
        start_session({k: v for k, v in given.items() if k not in PROFILE})
    elif operation == ["ec2-instance-connect", "open-tunnel"] and world()["version"] == 2:
        open_tunnel({k: v for k, v in given.items() if k not in PROFILE})
    else:
        refuse("aws: error: argument operation: Invalid choice, valid choices are:\n\nsend-ssh-public-key\nhelp", 252)


def start_session(given: dict[str, str]) -> None:
    """The plugin as a process of its own, told of the session in its environment."""
    if set(given) != {"--target", "--document-name", "--parameters"}:
        refuse(f"Unknown options: {', '.join(given)}", 252)
    target, where = given["--target"], world()["instances"]
    if target not in where:
        called = "An error occurred (TargetNotConnected) when calling the StartSession operation"
        refuse(f"{called}: {target} is not connected.", 254)
    if given["--document-name"] != "AWS-StartSSHSession":
        refuse("An error occurred (InvalidDocument) when calling the StartSession operation: no such document.", 254)
    name, _, port = given["--parameters"].partition("=")
    assert name == "portNumber", given
    plugin = shutil.which("session-manager-plugin")
    if plugin is None:
        refuse("SessionManagerPlugin is not found. Please refer to SessionManager Documentation here: http://…", 255)
    asked = {"Target": target, "DocumentName": given["--document-name"], "Parameters": {name: [port]}}
    words = [
        plugin,
        RESPONSE,
        "us-east-1",
        "StartSession",
        "",
        json.dumps(asked),
        "https://ssm.us-east-1.amazonaws.com",
    ]
    sys.exit(subprocess.call(words, env=os.environ | {RESPONSE: '{"SessionId": "me-0"}'}))


def open_tunnel(given: dict[str, str]) -> None:
    """The tunnel of the VPC's endpoint, which takes two ports only."""
    if set(given) != {"--instance-id", "--remote-port"}:
        refuse(f"Unknown options: {', '.join(given)}", 252)
    name, where = given["--instance-id"], world()["instances"]
    if name not in where:
        called = "An error occurred (InvalidInstanceID.NotFound) when calling the DescribeInstances operation"
        refuse(f"{called}: The instance ID '{name}' does not exist", 254)
    if not world()["endpoint"]:
        refuse("There are no available instance connect endpoints.", 252)
    if given["--remote-port"] not in ("22", "3389"):
        refuse("the endpoint takes no other port", 1)
    lead_to(where[name], int(given["--remote-port"]))


def plugin(words: list[str]) -> None:
    """Session Manager's plugin: bytes between its streams and the port."""
    assert os.environ[words[0]], "the session's token"
    asked = json.loads(words[4])
    lead_to(world()["instances"][asked["Target"]], int(asked["Parameters"]["portNumber"][0]))


def lead_to(address: str, port: int) -> None:
    """Pass bytes on until either side ends."""
    with Path(os.environ["STAND_IN_AWS"]).with_name("sessions").open("a") as log:
        log.write(f"{os.getpid()} {address}\n")
    with socket.create_connection((address, port)) as there:

        def take() -> None:
            while data := os.read(0, 1 << 16):
                there.sendall(data)
            there.shutdown(socket.SHUT_WR)

        threading.Thread(target=take, daemon=True).start()
        while data := there.recv(1 << 16):
            os.write(1, data)


if __name__ == "__main__":
    {"aws": aws, "session-manager-plugin": plugin}[sys.argv[1]](sys.argv[2:])
