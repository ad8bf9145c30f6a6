"""How fast this machine multiplies: `python benchmarks/yardstick.py`, to read figures of another day's machine by.

Prints the float32 rate of a 4096 x 4096 product on two threads, as TensorFlow computes it.
"""

import subprocess
import sys
import time
from typing import Any

SIDE, TRIES = 4096, 7
ELSEWHERE = 467.0
"""GFLOP/s of the machine that the quoted, not repeated figures of peers come from."""


def row() -> dict[str, Any]:
    """A line of a result file, measured in a process of its own."""
    said = subprocess.run([sys.executable, __file__], check=True, capture_output=True, text=True, timeout=300).stdout
    rates = sorted(map(float, said.split()))
    return {
        "what": f"yardstick: product of {SIDE} x {SIDE}, float32, two threads",
        "value": rates[len(rates) // 2],
        "unit": "GFLOP/s",
        "against": f"{ELSEWHERE:.0f} on the machine of the figures from another day",
        "ratio": None,
        "goal": None,
        "runs": len(rates),
        "spread": [rates[0], rates[-1]],
    }


def main() -> None:
    """Prints the rate of each try but the first."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(2)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    x = tf.random.normal([SIDE, SIDE])
    square = tf.function(lambda: tf.matmul(x, x))
    for number in range(TRIES + 1):
        began = time.perf_counter()
        square().numpy()
        if number:
            print(round(2 * SIDE**3 / (time.perf_counter() - began) / 1e9, 1))


if __name__ == "__main__":
    main()
