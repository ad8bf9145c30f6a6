"""Orders made by the flat names of their fields."""

import json
from typing import Any

from eks.job_spec import Order


def flat_order(**fields: Any) -> Order:
    """An order with these fields; others have their defaults."""
    return Order.from_json(json.dumps({"job": "a-1", "submission": "s1", "name": "a", "words": [], **fields}))
