"""Python's search for objects that only hold each other: not while a framework is imported and a network is built.

It goes through all that there is each time that this has grown by a quarter, and what an import and a graph make stays.
A process that trains for two steps takes a fifth less of the processor without; some of that at its end, when Python
searches once more.
"""

import gc

USUAL = gc.get_threshold()
STARTING = 100_000
"""Objects between two searches while a program starts; what a step makes and drops does not come to as many."""


def spare_start() -> None:
    """Make the garbage collector run rarely, until `settle` is called."""
    gc.set_threshold(STARTING)


def settle() -> None:
    """After a step: it searches as usual, never again in what is there now. Later calls do nothing."""
    if gc.get_threshold()[0] == STARTING:
        gc.freeze()  # 48 of 300,000 objects were dead here
        gc.set_threshold(*USUAL)
