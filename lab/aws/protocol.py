"""AWS's wire protocols, parsed and serialized from botocore's own service models."""

import json
import urllib.parse
from functools import cache
from typing import Any
from xml.sax.saxutils import escape

from moto.core.parse import PROTOCOL_PARSERS
from moto.core.serialize import get_serializer_class
from moto.core.utils import get_service_model


class AwsFault(Exception):
    """Error that a service would answer with."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code, self.message, self.status = code, message, status


Answer = tuple[int, dict[str, str], bytes]


@cache
def model(service: str) -> Any:
    """Return botocore's model of a service, as moto's parsers and serializers need it."""
    return get_service_model(service)


def operation_of(headers: dict[str, str], body: bytes) -> str:
    """Return the operation that a query or JSON request names; '' for REST protocols."""
    if target := headers.get("X-Amz-Target", ""):
        return target.rsplit(".", 1)[-1]
    if "x-www-form-urlencoded" in headers.get("Content-Type", ""):
        return urllib.parse.parse_qs(body.decode()).get("Action", [""])[0]
    return ""


def parse(service: str, operation: str, headers: dict[str, str], body: bytes) -> dict[str, Any]:
    """Return the parameters of a query or JSON request, as given to boto3. Raises AwsFault for an unknown operation."""
    if "json" in headers.get("Content-Type", ""):
        return json.loads(body or b"{}")
    described = model(service)
    if operation not in described.operation_names:
        raise AwsFault("InvalidAction", f"The action {operation} is not valid for this web service.")
    values = dict(urllib.parse.parse_qsl(body.decode(), keep_blank_values=True))
    protocol = "ec2" if service == "ec2" else "query"
    parser = PROTOCOL_PARSERS[protocol](described.operation_model(operation))
    return parser.parse(
        {"method": "POST", "values": values, "headers": headers, "body": body, "url_path": "/", "url_params": {}}
    )


def _protocol(service: str) -> str:
    """Return the protocol for a service's answers: JSON if the service supports it, which boto3 accepts too."""
    described = model(service).metadata
    return "json" if "json" in described.get("protocols", []) else str(described["protocol"])


def answer(service: str, operation: str, result: dict[str, Any]) -> Answer:
    """Serialize a result."""
    described = model(service)
    serializer = get_serializer_class(service, _protocol(service))(described.operation_model(operation))
    made = serializer.serialize(result)
    text = made["body"]
    return (
        made["status_code"],
        {k: str(v) for k, v in made["headers"].items()},
        text if isinstance(text, bytes) else text.encode(),
    )


def fault(service: str, error: AwsFault) -> Answer:
    """Serialize an error in the protocol of its service."""
    protocol = _protocol(service) if service != "s3" else "s3"
    said = f"<Code>{escape(error.code)}</Code><Message>{escape(error.message)}</Message>"
    if protocol in ("json", "rest-json"):
        text = json.dumps({"__type": error.code, "message": error.message, "Message": error.message})
        return (
            error.status,
            {"Content-Type": "application/x-amz-json-1.1", "x-amzn-ErrorType": error.code},
            text.encode(),
        )
    if protocol == "ec2":
        text = f"<Response><Errors><Error>{said}</Error></Errors><RequestID>fake</RequestID></Response>"
    elif protocol == "s3":
        text = f"<Error>{said}<RequestId>fake</RequestId></Error>"
    else:
        text = f"<ErrorResponse><Error><Type>Sender</Type>{said}</Error></ErrorResponse>"
    return error.status, {"Content-Type": "text/xml"}, text.encode()


def page(items: list[Any], p: dict[str, Any], size: int, limit: str = "") -> tuple[list[Any], dict[str, str]]:
    """Return one page of the items, and the token of the next page if there is one.

    Small pages reveal callers that do not read the second page.
    """
    start = int(p.get("NextToken") or 0)
    size = min(size, int(p.get(limit) or size)) if limit else size
    end = start + size
    return items[start:end], ({"NextToken": str(end)} if end < len(items) else {})
