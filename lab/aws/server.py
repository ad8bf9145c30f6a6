"""Server of the fake AWS: one process and port, our services in front, moto behind, faults and a log for both."""

import datetime
import email.utils
import re
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from werkzeug.serving import WSGIRequestHandler, make_server
from werkzeug.wrappers import Request

from lab.aws import kubernetes
from lab.aws.autoscaling import AutoScaling
from lab.aws.cloudformation import CloudFormation
from lab.aws.control import Control
from lab.aws.imds import NODE, OPERATOR
from lab.aws.moto_client import MOTO, client
from lab.aws.nodes import NodeSignals
from lab.aws.overrides import Extras
from lab.aws.protocol import Answer, AwsFault, answer, fault, operation_of, parse
from lab.aws.scaling import Scaler
from lab.aws.state import FakeState, FaultRule

SERVICES = {
    "elasticfilesystem": "efs",
    "elasticloadbalancing": "elbv2",
    "monitoring": "cloudwatch",
    "servicequotas": "service-quotas",
    "tagging": "resourcegroupstaggingapi",
}
BEHIND = (
    *("ec2", "iam", "efs", "s3", "ssm", "sts", "fsx", "logs", "service-quotas", "pricing", "ec2-instance-connect"),
    *("sns", "sqs"),  # for notifications about jobs
    *("eks", "kms", "elb", "elbv2"),
)


class QuietHandler(WSGIRequestHandler):
    """Request handler without access log, which dates answers by the world's clock and sends them at once."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    world: FakeState

    def date_time_string(self, timestamp: float | None = None) -> str:
        """Return the world's time, which may differ from this machine's."""
        return email.utils.format_datetime(self.world.now(), usegmt=True)

    def log(self, type: str, message: str, *args: Any) -> None:
        return None


class App:
    """WSGI application."""

    def __init__(self, world: FakeState) -> None:
        self.world = world
        self.cloudformation, self.autoscaling = CloudFormation(world), AutoScaling(world)
        self.extras, self.control = Extras(world), Control(world)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path.startswith("/_fake/"):
            return self._send(start_response, self._controlled(Request(environ), path))
        service, region = _target(environ)
        if service == "s3":
            rule = self._fault("s3", environ["REQUEST_METHOD"], _by_whom(environ, lambda: {"path": path}))
            return (
                self._send(start_response, fault("s3", _error(rule)))
                if rule and rule.code
                else MOTO(environ, start_response)
            )
        request = Request(environ)
        headers, body = dict(request.headers), request.get_data()
        operation = operation_of(headers, body) or f"{request.method} {path}"
        said = _by_whom(environ, lambda: parse(service, operation, headers, body))
        rule = self._fault(service, operation, self._with_tags(said, region))
        if refused := _error(rule) if rule and rule.code else self._late(headers):
            return self._send(start_response, fault(service, refused))
        made = self._own(service, region, operation, headers, body)
        if service == "eks":
            made = made or kubernetes.answer(self.world, region, request.method, path)
        return (
            self._send(start_response, made) if made else self._moto(environ, body, start_response, service, operation)
        )

    def _controlled(self, request: Request, path: str) -> Answer:
        try:
            return self.control.handle(request.method, path, dict(request.args), request.get_data(), request.headers)
        except (AwsFault, TypeError, KeyError, ValueError) as e:
            return 400, {"Content-Type": "text/plain"}, f"{type(e).__name__}: {e}".encode()

    def _own(self, service: str, region: str, operation: str, headers: dict[str, str], body: bytes) -> Answer | None:
        """Return the answer of our own services; None if moto answers."""
        own = {"cloudformation": self.cloudformation, "autoscaling": self.autoscaling}.get(service)
        try:
            if own is None and service not in Extras.operations:
                if service not in BEHIND:
                    raise AwsFault("InvalidAction", f"this fake does not have the service {service}")
                return None
            with self.world.lock:
                if own is None and operation not in Extras.operations[service]:
                    return None
                p = parse(service, operation, headers, body)
                if own is None:
                    return (
                        answer(service, operation, self.extras.answer(service, operation, region, p))
                        if self.extras.takes(service, operation, p)
                        else None
                    )
                method = getattr(own, re.sub(r"(?<!^)(?=[A-Z])", "_", operation).lower(), None)
                if method is None:
                    raise AwsFault("InvalidAction", f"this fake does not have {service}'s action {operation}")
                return answer(service, operation, method(region, p))
        except AwsFault as e:
            return fault(service, e)

    def _moto(
        self, environ: dict[str, Any], body: bytes, start_response: Callable[..., Any], service: str, operation: str
    ) -> Iterable[bytes]:
        from io import BytesIO

        environ["wsgi.input"] = BytesIO(body)
        with self.world.lock:
            chunks = list(MOTO(environ, start_response))
        if operation in ("TerminateInstances", "StopInstances", "StartInstances"):
            self.world.touch()
        return chunks

    def _with_tags(self, said: dict[str, Any], region: str) -> dict[str, Any]:
        """Add the current tags of the instances that a node's request names: they determine the node's role."""
        named = said.get("parameters", {})
        ids = [n for n in (*named.get("Resources", []), named.get("InstanceId", "")) if str(n).startswith("i-")]
        if not ids:
            return said
        with self.world.lock:
            asked = [{"Name": "resource-id", "Values": ids}]
            found = client("ec2", region).describe_tags(Filters=asked)["Tags"]
        return {**said, "tags": {i: {t["Key"]: t["Value"] for t in found if t["ResourceId"] == i} for i in ids}}

    def _fault(self, service: str, operation: str, said: dict[str, Any] | None = None) -> FaultRule | None:
        """Log the call, and return the rule that applies to it, counted as used. Its delay passes before the return.

        said: further fields of the log entry.
        """
        said = said or {}
        with self.world.lock:
            self.world.log.append({"service": service, "operation": operation, **said})
            rule = next(
                (
                    r
                    for r in self.world.faults
                    if r.times > 0
                    and r.service == service
                    and re.fullmatch(r.action, operation)
                    and r.who in ("", said.get("key"))
                ),
                None,
            )
            if rule and rule.skip > 0:
                rule.skip -= 1
                return None
            if rule:
                rule.times -= 1
        if rule and rule.delay_s:
            time.sleep(rule.delay_s)
        return rule

    def _late(self, headers: dict[str, str]) -> AwsFault | None:
        """Return an error if strict_time is set and the request was signed by a clock more than five minutes off."""
        signed, now = headers.get("X-Amz-Date", ""), self.world.now()
        if not self.world.strict_time or not signed:
            return None
        at = datetime.datetime.strptime(signed, "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.UTC)
        if abs((at - now).total_seconds()) < 300:
            return None
        return AwsFault(
            "SignatureDoesNotMatch", f"Signature expired: {signed} is not within 5 min. of {now:%Y%m%dT%H%M%SZ}", 403
        )

    @staticmethod
    def _send(start_response: Callable[..., Any], made: Answer) -> Iterable[bytes]:
        status, headers, body = made
        start_response(
            f"{status} {'OK' if status < 300 else 'Error'}", [*headers.items(), ("Content-Length", str(len(body)))]
        )
        return [body]


def _target(environ: dict[str, Any]) -> tuple[str, str]:
    """Return service and region from the signature's scope. Unsigned requests are taken for S3."""
    match = re.search(r"Credential=[^/]+/\d+/([^/]+)/([^/]+)/aws4_request", environ.get("HTTP_AUTHORIZATION", ""))
    if not match:
        return "s3", "us-east-1"
    return SERVICES.get(match[2], match[2]), match[1]


def _by_whom(environ: dict[str, Any], parameters: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the access key and parameters of a request by a node's own credentials or by OPERATOR, else {}."""
    match = re.search(rf"Credential=({NODE}[^/]+|{OPERATOR})/", environ.get("HTTP_AUTHORIZATION", ""))
    if not match:
        return {}
    try:
        return {"key": match[1], "parameters": parameters()}
    except AwsFault:  # of a service whose operations are paths
        return {"key": match[1], "parameters": {}}


def _error(rule: FaultRule) -> AwsFault:
    return AwsFault(rule.code, rule.message or f"{rule.code} (asked for by the test)", rule.status)


class FakeAws:
    """Running fake AWS. It ends with its `with` block, or by `stop`."""

    def __init__(self, host: str, port: int, scale: float, nodes: str, tag_prefix: str) -> None:
        self.world = FakeState(scale=scale, nodes=nodes, tag_prefix=tag_prefix)
        self.app = App(self.world)
        self.server = make_server(
            host, port, self.app, threaded=True, request_handler=type("Dated", (QuietHandler,), {"world": self.world})
        )
        self.server.daemon_threads = True
        self.url = f"http://{host}:{self.server.server_port}"
        self.threads = [
            threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True, name="fake-aws"),
            Scaler(self.world),
            NodeSignals(self.world, self.app.cloudformation),
        ]
        for thread in self.threads:
            thread.start()

    def reset(self) -> None:
        """Forget all state except settings, such as the time scale and how nodes boot."""
        with self.world.lock:
            self.app.control.post_reset("", {}, {})

    def stop(self) -> None:
        """Stop the server and wait for its threads."""
        with self.world.lock:
            self.world.closed = True
            self.world.touch()
        self.server.shutdown()
        self.server.server_close()
        for thread in self.threads:
            thread.join(timeout=10)

    def __enter__(self) -> "FakeAws":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def start(
    host: str = "127.0.0.1", port: int = 0, scale: float = 1.0, nodes: str = "ready", *, tag_prefix: str
) -> FakeAws:
    """Start a fake AWS on this port of the machine; port 0 selects a free one.

    Args:
        scale: real seconds per second of AWS's timeouts: 0.0002 in tests, more if machines really boot.
        nodes: 'ready' if simulated instances report ready themselves, 'none' if another process runs their user data.
        tag_prefix: of the tags in which instances report their role, boot and host key.
    """
    return FakeAws(host, port, scale, nodes, tag_prefix)
