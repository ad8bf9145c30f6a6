"""All-reduce over Horovod under mpirun: checks the sums of arrays of growing size, and measures the bandwidth.

`python -m cluster.health.ranks.reduce --sizes 4096,1048576 --runs 5`: rank 0 prints one JSON object per size. Bus
bandwidth is 2 (n - 1) / n times size / time, as nccl-tests define it (their doc/PERFORMANCE.md).
"""

import argparse
import json
import os
import statistics
import time


def main() -> None:
    """Reduce and measure. Raises SystemExit if any rank gets a wrong sum."""
    parser = argparse.ArgumentParser(prog="cluster.health.ranks.reduce")
    parser.add_argument("--sizes", default="4096,65536,1048576,8388608")
    parser.add_argument("--runs", type=int, default=5)
    asked = parser.parse_args()

    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    if int(os.environ.get("OMPI_COMM_WORLD_SIZE", hvd.size())) != hvd.size():
        raise SystemExit(
            f"mpirun started ranks: {os.environ['OMPI_COMM_WORLD_SIZE']}, Horovod finds: {hvd.size()}. It was built "
            "with another Open MPI; run scripts/install.sh on the hosts"
        )
    if gpus := tf.config.list_physical_devices("GPU"):
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
        tf.config.experimental.set_memory_growth(gpus[hvd.local_rank()], True)
    ranks = hvd.size()
    for size in map(int, asked.sizes.split(",")):
        values = tf.fill([size // 4], float(hvd.rank() + 1))
        times = []
        for run in range(asked.runs + 1):  # the first run makes buffers and connections
            hvd.allreduce(tf.zeros([1]), name=f"barrier-{size}-{run}")
            began = time.perf_counter()
            total = hvd.allreduce(values, op=hvd.Sum, name=f"reduce-{size}-{run}").numpy()
            times.append(time.perf_counter() - began)
            if total[0] != ranks * (ranks + 1) / 2 or total[-1] != total[0]:
                raise SystemExit(f"rank {hvd.rank()}: the sum is {total[0]}, not {ranks * (ranks + 1) / 2}")
        middle = statistics.median(times[1:])
        if hvd.rank() == 0:
            print(
                json.dumps(
                    {
                        "ranks": ranks,
                        "bytes": size,
                        "seconds": middle,
                        "bus_bytes_per_s": 2 * (ranks - 1) / ranks * size / middle,
                    }
                ),
                flush=True,
            )
    hvd.shutdown()


if __name__ == "__main__":
    main()
