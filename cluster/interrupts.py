"""Shield against Ctrl-C, TERM and HUP for steps that must not be interrupted."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

_ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def put_off(say: str = "", *, forgets_ctrl_c: bool = False) -> Iterator[None]:
    """Delay these signals until the context ends. Then raise each of them again.

    Args:
        say: message for each signal, for an impatient operator.
        forgets_ctrl_c: drop a Ctrl-C that has no handler besides Python's own. TERM and HUP are never dropped.
    """
    if threading.current_thread() is not threading.main_thread():  # signals are handled only in the main thread
        yield
        return
    heard: list[int] = []

    def wait(number: int, _frame: Any) -> None:
        heard.append(number)
        if say:
            print(say, file=sys.stderr)

    before = {s: signal.signal(s, wait) for s in _ALL if signal.getsignal(s) != signal.SIG_IGN}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for late in dict.fromkeys(heard):
            own = before[signal.Signals(late)]
            if not (forgets_ctrl_c and late == signal.SIGINT and own in (signal.default_int_handler, signal.SIG_DFL)):
                signal.raise_signal(late)
