"""Error answers of the API: a Status object with a code and a reason, as kubectl expects it."""

from lab.kube.kinds import Document, Kind


class Refusal(Exception):
    """Error by which the API refuses a request."""

    def __init__(self, code: int, reason: str, message: str, details: Document | None = None) -> None:
        super().__init__(message)
        self.code, self.reason, self.message, self.details = code, reason, message, details or {}

    @classmethod
    def missing(cls, what: Kind, name: str) -> "Refusal":
        """Return the error that the object does not exist."""
        return cls(404, "NotFound", f'{_kinds(what)} "{name}" not found', _details(what, name))

    @classmethod
    def exists(cls, what: Kind, name: str) -> "Refusal":
        """Return the error that the object exists already."""
        return cls(409, "AlreadyExists", f'{_kinds(what)} "{name}" already exists', _details(what, name))

    @classmethod
    def conflict(cls, what: Kind, name: str) -> "Refusal":
        """Return the error that the object has changed since it was read."""
        why = "the object has been modified; please apply your changes to the latest version and try again"
        return cls(409, "Conflict", f'Operation cannot be fulfilled on {_kinds(what)} "{name}": {why}')

    @classmethod
    def invalid(cls, what: Kind, name: str, field: str, why: str) -> "Refusal":
        """Return the error that a field of the object is invalid."""
        details: Document = {"name": name, "group": what.group, "kind": what.name}
        details["causes"] = [{"reason": "FieldValueInvalid", "message": why, "field": field}]
        return cls(422, "Invalid", f'{what.name} "{name}" is invalid: {field}: {why}', details)

    @classmethod
    def gone(cls, version: int) -> "Refusal":
        """Return the error that changes after this version are forgotten, so that the client must list again."""
        return cls(410, "Expired", f"too old resource version: {version}")

    def status(self) -> Document:
        """Return the error as a Status object."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": self.details,
            "code": self.code,
        }


def _kinds(what: Kind) -> str:
    return f"{what.plural}.{what.group}" if what.group else what.plural


def _details(what: Kind, name: str) -> Document:
    return {"name": name, "group": what.group, "kind": what.plural}
