"""Peers of the trainer's speed, as most people write them: `keras_peer.py fit|tape BATCH STEPS SIZE THREADS`.

`fit`: tf.keras' own ResNet-50 and `fit`, one process. `tape`: the same network in a compiled loop whose gradients go
through Horovod's DistributedGradientTape, as Horovod's documentation shows; under mpirun or alone. Synthetic images,
float32, two warm-up steps. Prints `total images/sec: X`.
"""

import sys
import time

import horovod.tensorflow as hvd
import tensorflow as tf
import tf_keras as keras

RATE, MOMENTUM, WARMUP = 0.01, 0.9, 2


def fit(model: keras.Model, images: tf.Tensor, labels: tf.Tensor, steps: int) -> float:
    """Seconds of these steps by Keras' own loop."""
    model.compile(
        keras.optimizers.SGD(RATE, momentum=MOMENTUM, nesterov=True),
        "sparse_categorical_crossentropy",
        jit_compile=False,
    )
    data = tf.data.Dataset.from_tensors((images, labels)).repeat()
    model.fit(data, steps_per_epoch=WARMUP, verbose=0)
    began = time.perf_counter()
    model.fit(data, steps_per_epoch=steps, verbose=0)
    return time.perf_counter() - began


def tape(model: keras.Model, images: tf.Tensor, labels: tf.Tensor, steps: int) -> float:
    """Seconds of these steps, gradients reduced over the ranks."""
    optimizer = keras.optimizers.legacy.SGD(RATE, momentum=MOMENTUM, nesterov=True)
    loss_of = keras.losses.SparseCategoricalCrossentropy()

    @tf.function
    def step(first: bool) -> tf.Tensor:
        with tf.GradientTape() as record:
            loss = loss_of(labels, model(images, training=True))
        reduced = hvd.DistributedGradientTape(record)
        optimizer.apply_gradients(
            zip(reduced.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )
        if first:
            hvd.broadcast_variables(model.variables, root_rank=0)
        return loss

    for i in range(WARMUP):
        step(i == 0).numpy()
    began = time.perf_counter()
    for _ in range(steps):
        step(False).numpy()
    return time.perf_counter() - began


def main() -> None:
    """Trains and prints the speed of all ranks together."""
    way, (batch, steps, size, threads) = sys.argv[1], map(int, sys.argv[2:])
    hvd.init()
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    model = keras.applications.ResNet50(weights=None, input_shape=(size, size, 3))
    images = tf.random.normal([batch, size, size, 3])
    labels = tf.random.uniform([batch], 0, 1000, tf.int32)
    seconds = {"fit": fit, "tape": tape}[way](model, images, labels, steps)
    total = float(hvd.allreduce(tf.constant(batch * steps / seconds), op=hvd.Sum))
    if hvd.rank() == 0:
        print("total images/sec:", total)


if __name__ == "__main__":
    main()
