"""tf_cnn_benchmarks, each of whose steps waits for its turn: flags are its own, and its folder is on the path."""

import runpy

import benchmark_cnn  # of tf_cnn_benchmarks

from benchmarks.lockstep import Turns


def main() -> None:
    """Trains."""
    turns, step = Turns(), benchmark_cnn.benchmark_one_step
    benchmark_cnn.benchmark_one_step = lambda *words, **more: turns.take(lambda: step(*words, **more))
    runpy.run_module("tf_cnn_benchmarks", run_name="__main__")


if __name__ == "__main__":
    main()
