"""boto3 clients that call moto inside this process. Resource handlers use them as CloudFormation uses the APIs."""

import os
from functools import cache, lru_cache
from io import BytesIO
from typing import Any

import boto3
from botocore.awsrequest import AWSResponse
from botocore.config import Config
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.test import EnvironBuilder, run_wsgi_app

# Moto's hundreds of default images are not used here. Creating them takes 0.2 s per region and reset.
os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"


class _Dispatcher(DomainDispatcherApplication):
    """moto's dispatcher with a cache.

    Moto's own lists its folder on each request, which takes half of the request's time.
    """

    @cache  # noqa: B019 (there is one instance, which lives as long as the process)
    def get_backend_for_host(self, host: str | None) -> Any:
        return super().get_backend_for_host(host)


MOTO = _Dispatcher(create_backend_app)


class _Body(BytesIO):
    """Response body with the interface that botocore reads."""

    def stream(self, amt: int = 65536, decode_content: bool = False) -> Any:
        while piece := self.read(amt):
            yield piece


def _send(request: Any, **_: Any) -> AWSResponse:
    body = request.body if isinstance(request.body, bytes) else (request.body or "").encode()
    headers = {k: v.decode() if isinstance(v, bytes) else str(v) for k, v in request.headers.items()}
    environ = EnvironBuilder(
        request.url, base_url=None, method=request.method, data=body, headers=headers
    ).get_environ()
    chunks, status, answered = run_wsgi_app(MOTO, environ)
    return AWSResponse(request.url, int(status.split()[0]), answered, _Body(b"".join(chunks)))


@lru_cache(maxsize=64)
def client(service: str, region: str) -> Any:
    """Return a boto3 client of moto's service in a region. Its requests do not leave the process."""
    session = boto3.Session(aws_access_key_id="fake", aws_secret_access_key="fake", region_name=region)
    session.events.register("before-send", _send)
    return session.client(
        service,
        endpoint_url="http://moto.inside",
        config=Config(parameter_validation=True, retries={"total_max_attempts": 1}),
    )
