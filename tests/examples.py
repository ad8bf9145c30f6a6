"""On which examples property tests run: those that a seed draws, on every machine the same."""

import os

import pytest
from hypothesis import HealthCheck, settings

SEED = "DLAMI_TEST_SEED"
# How long an example takes says how busy the machine is, not what the code does. Where CI is set in the environment
# hypothesis takes the same examples for ever, whatever the seed.
settings.register_profile(
    "untimed",
    settings.get_profile("default"),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=False,
    print_blob=True,
)
settings.register_profile("quick", settings.get_profile("untimed"), max_examples=20)  # of `make check`
# `make fuzz` takes this profile; DLAMI_FUZZ_SECONDS makes property tests as long as what tests/fuzzing.py runs.
settings.register_profile(
    "fuzz",
    settings.get_profile("untimed"),
    max_examples=max(100, int(50 * float(os.environ.get("DLAMI_FUZZ_SECONDS", "0")))),
)
settings.load_profile("fuzz" if "DLAMI_FUZZ_SECONDS" in os.environ else "untimed")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """The seed draws the examples where they have none of their own: the same commit is tried on the same ones."""
    if (seed := os.environ.get(SEED)) and config.getoption("hypothesis_seed") is None:
        config.option.hypothesis_seed = seed
