"""Jobs made by the flat names of their fields, as `--json` prints them."""

import dataclasses
import json
from typing import Any

from cluster.jobs.flat_record import as_flat, from_flat
from cluster.jobs.record import Job, now
from cluster.typed import from_json

_LEAST = {"name": "small", "command": (), "mpirun": (), "np": 1, "hosts": (), "profile": "tcp", "versions": {}}


def job_of(**fields: Any) -> Job:
    """A job with these fields; others have their defaults."""
    whole = {**_LEAST, "created": now(), **fields}
    return from_json(Job, from_flat(json.loads(json.dumps(whole, default=dataclasses.asdict))))


def changed(job: Job, **fields: Any) -> Job:
    """The job with some fields changed."""
    return job_of(**{**as_flat(job), **fields})
