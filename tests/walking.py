"""One test over many cases that are walked: recorded answers, templates, modules, tasks.

A case of `pytest.mark.parametrize` costs pytest more than most of these checks take. `walked` makes one test of them,
which checks every case and fails with a table of those that fail.
"""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

LINES = 12  # of each failure, in the table


def walked(name: str, cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a test so that it runs once and checks its argument `name` for each case.

    Fixtures are set up once for all cases, so a test whose cases must not see each other's is no such test.

    Raises:
        AssertionError: with how many cases fail, and each of those beside the beginning of its failure.
    """
    every = list(cases)

    def decorate(check: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(check)
        def test(**fixtures: Any) -> None:
            __tracebackhide__ = True
            assert every, "there is no case to check"
            failed = {case: failure for case in every if (failure := failure_of(check, fixtures | {name: case}))}
            if failed:
                table = "\n".join(f"{case} | {failure}" for case, failure in failed.items())
                raise AssertionError(f"{len(failed)} of {len(every)} cases fail:\n{table}")

        signature = inspect.signature(check)
        rest = [p for p in signature.parameters.values() if p.name != name]
        test.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
        return test

    return decorate


def failure_of(check: Callable[..., None], arguments: dict[str, Any]) -> str:
    """Return the beginning of what the check of one case raises, or "" if it passes."""
    try:
        check(**arguments)
    except Exception as e:
        place = inspect.getinnerframes(e.__traceback__)[-1]
        lines = [*str(e).splitlines(), f"({type(e).__name__}, line {place.lineno} of {place.filename})"]
        return "\n    ".join(lines[:LINES])
    return ""
