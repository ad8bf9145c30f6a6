"""What differs where ranks are launched: over SSH between machines, or inside the pods of one job."""

import pytest

from cluster.inventory import SshSettings
from cluster.ssh import options
from cluster.ssh.failure import Reason
from cluster.ssh.launcher import CONFIG_VARIABLE, InPods, OverSsh, launcher
from cluster.ssh.options import Route


@pytest.mark.parametrize("reason", [None, *Reason])
def test_a_pod_ends_with_its_sshd_and_a_machine_may_still_run_ranks(reason: Reason | None) -> None:
    """A pod whose connection broke is asked once more."""
    over = (Reason.UNKNOWN_NAME, Reason.REFUSED, Reason.NO_ROUTE)
    assert (reason in over, reason is Reason.BROKE_OFF) == (
        InPods("/c").is_gone(reason),
        InPods("/c").may_be_gone(reason),
    )
    assert (False, False) == (OverSsh().is_gone(reason), OverSsh().may_be_gone(reason))


def test_in_a_pod_the_job_s_own_settings_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nowhere else is a file of settings named."""
    monkeypatch.delenv(CONFIG_VARIABLE, raising=False)
    assert launcher().has_machines
    assert "-F" not in options.options_on_hosts() + options.options(SshSettings())
    monkeypatch.setenv(CONFIG_VARIABLE, "/etc/job/config")

    assert not launcher().has_machines
    given = options.options_for_a_person(Route("a", SshSettings()), forward_agent=False)
    for words in (options.options(SshSettings()), options.options_on_hosts(), given):
        assert ["-F", "/etc/job/config"] == words[:2]
