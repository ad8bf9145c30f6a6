"""Speed of each GPU of this host: bandwidth from the host's memory, and a short matrix product.

One JSON object per GPU.

Run on the host as `python -m cluster.health.ranks.gpu_speed`, in the environment for training.
"""

import argparse
import json
import statistics
import time


def main() -> None:
    """Measure every GPU in turn. Print nothing on a host without GPUs."""
    parser = argparse.ArgumentParser(prog="cluster.health.ranks.gpu_speed")
    parser.add_argument("--device", default="GPU", help="GPU, or CPU to try the program where there is none")
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--side", type=int, default=8192, help="rows of the square matrices")
    asked = parser.parse_args()

    import numpy as np
    import tensorflow as tf

    for index, _ in enumerate(tf.config.list_physical_devices(asked.device)):
        with tf.device(f"/{asked.device}:{index}"):
            data = np.ones(asked.megabytes << 18, np.float32)
            copy_s = _median(lambda data=data: tf.reduce_max(tf.identity(tf.constant(data))[:1]).numpy())
            a = tf.ones([asked.side, asked.side], tf.float16 if asked.device == "GPU" else tf.float32)
            product_s = _median(lambda a=a: tf.reduce_max(tf.linalg.matmul(a, a)[:1, :1]).numpy())
        print(
            json.dumps({"gpu": index, "host_to_device": data.nbytes / copy_s, "flops": 2 * asked.side**3 / product_s}),
            flush=True,
        )


def _median(do: object, runs: int = 5) -> float:
    """Return the median duration of some runs in seconds, after a warm-up."""
    assert callable(do)
    times = []
    for _ in range(runs + 1):
        began = time.perf_counter()
        do()
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


if __name__ == "__main__":
    main()
