"""An account whose answers are written down, for what needs no more of AWS than a few: nothing is asked of anybody."""

from collections.abc import Callable, Mapping
from typing import Any

from botocore.exceptions import ClientError

from cfn.aws import Aws

Answer = dict[str, Any] | Exception | Callable[..., Any]


def refused(code: str, message: str = "no") -> ClientError:
    """What AWS says instead of an answer."""
    return ClientError({"Error": {"Code": code, "Message": message}}, "Asked")


class Service:
    """A client of one service: each operation has one answer, an error, or what makes it of the arguments."""

    def __init__(self, name: str, answers: Mapping[str, Answer]) -> None:
        self._name, self._answers = name, answers

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        if operation not in self._answers:
            raise AssertionError(f"nobody wrote down what {self._name} answers to {operation}")
        return lambda **arguments: self._answer(operation, arguments)

    def _answer(self, operation: str, arguments: dict[str, Any]) -> Any:
        said = self._answers[operation]
        if isinstance(said, Exception):
            raise said
        return said(**arguments) if callable(said) else said

    def get_paginator(self, operation: str) -> "Pages":
        """What answers page by page."""
        return Pages(getattr(self, operation))


class Pages:
    """The pages of one operation: one, unless the answer is a list of them."""

    def __init__(self, asked: Callable[..., Any]) -> None:
        self._asked = asked

    def paginate(self, **arguments: Any) -> list[Any]:
        """All of them."""
        said = self._asked(**arguments)
        return said if isinstance(said, list) else [said]


def answering(**services: Mapping[str, Answer]) -> Aws:
    """An account in us-east-1 with these services."""
    return Aws("us-east-1", _clients={name: Service(name, answers) for name, answers in services.items()})
