"""One process, one port: our services in front, moto behind, faults and a log around both."""

import re
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from werkzeug.serving import WSGIRequestHandler, make_server
from werkzeug.wrappers import Request

from cluster.lab.aws.autoscaling import AutoScaling
from cluster.lab.aws.cloudformation import CloudFormation
from cluster.lab.aws.control import Control
from cluster.lab.aws.extras import Extras
from cluster.lab.aws.inner import MOTO
from cluster.lab.aws.nodes import Nodes
from cluster.lab.aws.scaling import Scaler
from cluster.lab.aws.wire import Answer, AwsFault, answer, fault, operation_of, parse
from cluster.lab.aws.world import FaultRule, World

SERVICES = {"elasticfilesystem": "efs", "monitoring": "cloudwatch", "servicequotas": "service-quotas"}
BEHIND = ("ec2", "iam", "efs", "s3", "ssm", "sts", "fsx", "logs", "service-quotas", "pricing", "ec2-instance-connect")


class Quiet(WSGIRequestHandler):
    """No line per request on stderr; answers are sent at once and connections kept, as AWS's endpoints do."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log(self, type: str, message: str, *args: Any) -> None:
        return None


class App:
    """The WSGI application."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cloudformation, self.autoscaling = CloudFormation(world), AutoScaling(world)
        self.extras, self.control = Extras(world), Control(world)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path.startswith("/_fake/"):
            return self._send(start_response, self._controlled(Request(environ), path))
        service, region = _target(environ)
        if service == "s3":
            rule = self._fault("s3", environ["REQUEST_METHOD"])
            return (
                self._send(start_response, fault("s3", _error(rule)))
                if rule and rule.code
                else MOTO(environ, start_response)
            )
        request = Request(environ)
        headers, body = dict(request.headers), request.get_data()
        operation = operation_of(headers, body) or f"{request.method} {path}"
        rule = self._fault(service, operation)
        if rule and rule.code:
            return self._send(start_response, fault(service, _error(rule)))
        made = self._own(service, region, operation, headers, body)
        return (
            self._send(start_response, made) if made else self._moto(environ, body, start_response, service, operation)
        )

    def _controlled(self, request: Request, path: str) -> Answer:
        try:
            return self.control.handle(request.method, path, dict(request.args), request.get_data())
        except (AwsFault, TypeError, KeyError, ValueError) as e:
            return 400, {"Content-Type": "text/plain"}, f"{type(e).__name__}: {e}".encode()

    def _own(self, service: str, region: str, operation: str, headers: dict[str, str], body: bytes) -> Answer | None:
        """The answer of a service of ours; None if moto shall answer."""
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

    def _fault(self, service: str, operation: str) -> FaultRule | None:
        """The rule for this call, used up by it; its delay passes here."""
        with self.world.lock:
            self.world.log.append({"service": service, "operation": operation})
            rule = next(
                (
                    r
                    for r in self.world.faults
                    if r.times > 0 and r.service == service and re.fullmatch(r.action, operation)
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

    @staticmethod
    def _send(start_response: Callable[..., Any], made: Answer) -> Iterable[bytes]:
        status, headers, body = made
        start_response(
            f"{status} {'OK' if status < 300 else 'Error'}", [*headers.items(), ("Content-Length", str(len(body)))]
        )
        return [body]


def _target(environ: dict[str, Any]) -> tuple[str, str]:
    """Service and region, from the signature's scope. What is not signed is taken for S3."""
    match = re.search(r"Credential=[^/]+/\d+/([^/]+)/([^/]+)/aws4_request", environ.get("HTTP_AUTHORIZATION", ""))
    if not match:
        return "s3", "us-east-1"
    return SERVICES.get(match[2], match[2]), match[1]


def _error(rule: FaultRule) -> AwsFault:
    return AwsFault(rule.code, rule.message or f"{rule.code} (asked for by the test)", rule.status)


class FakeAws:
    """A running fake; leave the `with` block, or call `stop`, to end it."""

    def __init__(self, host: str, port: int, scale: float, nodes: str, tag_prefix: str) -> None:
        self.world = World(scale=scale, nodes=nodes, tag_prefix=tag_prefix)
        self.app = App(self.world)
        self.server = make_server(host, port, self.app, threaded=True, request_handler=Quiet)
        self.server.daemon_threads = True
        self.url = f"http://{host}:{self.server.server_port}"
        self.threads = [
            threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True, name="fake-aws"),
            Scaler(self.world),
            Nodes(self.world, self.app.cloudformation),
        ]
        for thread in self.threads:
            thread.start()

    def reset(self) -> None:
        """Forget everything; time scale and nodes as at the start."""
        with self.world.lock:
            self.app.control.post_reset("", {}, {})

    def stop(self) -> None:
        """End it; nothing keeps running."""
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
    """A fake AWS on a free port of this machine (port 0) or the one given.

    Args:
        scale: seconds of ours for one second of AWS's time-outs: 0.0002 in tests, more where machines really boot.
        nodes: 'ready' if instances shall report ready by themselves, 'none' if whoever runs their user data does it.
        tag_prefix: of the tags by which instances tell their role, their boot and their host key.
    """
    return FakeAws(host, port, scale, nodes, tag_prefix)
