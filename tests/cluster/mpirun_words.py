"""Facts of hosts, and the words of an mpirun."""

from typing import Any

from cluster.launch.facts import HostFacts


def facts_of(**changes: Any) -> Any:
    fields = {
        "kernel": "6.8",
        "python": "3.12.3",
        "packages": {"horovod": "0.28.1"},
        "mpirun": "/opt/amazon/openmpi/bin/mpirun",
        "mpirun_version": "4.1.7",
        "interface": "ens5",
        "network": "10.0.1.0/24",
        "cores": 96,
        "gpus": 8,
        "has_efa": False,
        "shared": "yes",
        "is_root": False,
    }
    return HostFacts(**{**fields, **changes})


def exported(words: Any) -> Any:
    return dict(words[i + 1].partition("=")[::2] for i, w in enumerate(words) if w == "-x")
