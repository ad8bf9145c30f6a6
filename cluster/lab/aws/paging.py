"""Pages of a list: small ones on request, so that a caller without a paginator is found out."""

from typing import Any


def page(items: list[Any], p: dict[str, Any], size: int, limit: str = "") -> tuple[list[Any], dict[str, str]]:
    """One page, and the token of the next if there is one."""
    start = int(p.get("NextToken") or 0)
    size = min(size, int(p.get(limit) or size)) if limit else size
    end = start + size
    return items[start:end], ({"NextToken": str(end)} if end < len(items) else {})
