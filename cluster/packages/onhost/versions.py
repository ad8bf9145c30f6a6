"""Versions of Python and of the usual training packages in an environment; run as its `python -c THIS`."""

from __future__ import annotations

import json
import platform
from importlib import metadata

PACKAGES = (
    *("torch", "tensorflow", "tensorflow-cpu", "horovod", "jax", "deepspeed", "accelerate", "lightning"),
    *("transformers", "mpi4py", "numpy"),
)


def versions() -> dict[str, str]:
    """Return the versions by name; packages that are missing are left out."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name.replace("-cpu", "")] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    print(json.dumps(versions()))
