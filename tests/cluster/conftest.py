"""What several files of tests of jobs share."""

from collections.abc import Iterator
from typing import Any

import pytest

from cluster.inventory import Cluster
from cluster.jobs.client import Jobs
from cluster.ssh.fanout import Reach


@pytest.fixture
def jobs(reach: Reach, cluster: Cluster) -> Iterator[Any]:
    """The jobs of the lab's cluster; none goes on afterwards."""
    made = Jobs(reach, cluster)
    yield made
    for job in made.list().jobs:
        if job.state.holds_hosts:
            made.stop(job.id)
