"""When a host counts as lost, and who says so: pure, and against this machine's own kernel."""

from typing import Any

from cluster.recovery import liveness
from cluster.recovery.liveness import LOOKS, Presence


class Hosts:
    """Hosts that answer or not, as a test says."""

    def __init__(self, *silent: Any) -> None:
        self.silent = set(silent)

    def look(self, addresses: Any) -> Any:
        return self.silent & set(addresses)


def looked(watch: Any, times: Any) -> None:
    for _ in range(times):
        watch.look()


def test_a_host_is_lost_after_so_many_silent_looks_in_a_row() -> None:
    """One answer in between, as of a cut that healed, and it begins again."""
    hosts = Hosts()
    watch = Presence(["a", "b"], hosts.look)
    looked(watch, 1)
    hosts.silent = {"b"}
    looked(watch, LOOKS - 1)
    assert None is watch.lost()
    hosts.silent = set()
    looked(watch, 1)
    hosts.silent = {"b"}
    looked(watch, LOOKS - 1)
    assert None is watch.lost()
    looked(watch, 1)
    assert "b" == watch.lost()
    assert ("b",) == watch.gone()


def test_a_host_that_never_answered_is_not_judged() -> None:
    """A firewall may be in the way; mpirun reaches it all the same."""
    watch = Presence(["a"], Hosts("a").look)
    looked(watch, 5 * LOOKS)

    assert (None, (), False) == (watch.lost(), watch.gone(), watch.is_silent("a"))


def test_mpirun_s_word_that_a_host_is_lost_is_looked_at() -> None:
    """Its daemon's end looks the same to it; a host that answers is not lost."""
    hosts = Hosts()
    watch = Presence(["a"], hosts.look)
    looked(watch, 1)
    assert not watch.is_silent("a")
    hosts.silent = {"a"}
    assert watch.is_silent("a")


def test_a_dead_host_is_known_within_fifteen_seconds() -> None:
    """From a death right after a look to the end of the last one that counts."""
    assert liveness.LOOKS * liveness.LOOK_S + liveness.ANSWER_S < 15
    assert liveness.ANSWER_S <= liveness.LOOK_S
