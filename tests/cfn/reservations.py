"""A reservation in the fake account."""

from collections.abc import Callable
from typing import Any


def reservation(scene: Callable[..., Any], **more: Any) -> str:
    said = {
        "CapacityReservationId": "cr-0123456789abcdef0",
        "InstanceType": "p5.48xlarge",
        "AvailabilityZone": "us-east-1d",
        "State": "active",
        "ReservationType": "capacity-block",
        "TotalInstanceCount": 4,
        "AvailableInstanceCount": 4,
        **more,
    }
    scene("reservations", said)
    return "cr-0123456789abcdef0"
