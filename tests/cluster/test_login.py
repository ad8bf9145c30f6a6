"""One host for a person, over Fabric."""

import dataclasses

import pytest

from cluster.errors import ClusterError
from cluster.inventory import Access
from cluster.lab import lab as labs
from cluster.ssh.login import login


def test_a_command_runs_on_the_one_host_and_its_exit_code_comes_back(inv, cluster):
    """Output as it comes, words kept as words."""
    done = inv("login", "1", "--", "sh", "-c", "hostname; exit 5")

    assert f"{cluster.name}-1\n" == done.stdout
    assert 5 == done.returncode


def test_an_unknown_host_key_is_refused(cluster, tmp_path):
    """As in every other way to a host."""
    (tmp_path / "known").touch()
    stranger = dataclasses.replace(
        cluster, access=Access(user="root", key=cluster.access.key, known_hosts=tmp_path / "known")
    )

    with pytest.raises(ClusterError, match="its SSH host key is not known here"):
        login(stranger, cluster.master, ["true"])


def test_a_host_that_is_down_is_named(lab, cluster):
    """With what to look at."""
    labs.crash(lab, lab.hosts[2])

    with pytest.raises(ClusterError, match=cluster.hosts[2].address):
        login(cluster, cluster.hosts[2], ["true"])
