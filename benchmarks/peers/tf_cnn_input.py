"""tf_cnn_benchmarks' own input alone: `tf_cnn_input.py SHARDS BATCH STEPS THREADS`, its folder on the path.

Its preprocessor as its program makes it for a ResNet without --distortions, given the threads that a run with a GPU
would give it. Nothing is copied out of TensorFlow: each batch is made, and forgotten. Prints an image's
seconds by the clock and of the processors, as JSON.
"""

import json
import sys
import time

import datasets  # of tf_cnn_benchmarks
import preprocessing  # of tf_cnn_benchmarks
import tensorflow.compat.v1 as tf

SIZE, WARM_UP = 224, 4


def main() -> None:
    """Measures."""
    shards, (batch, steps, threads) = sys.argv[1], map(int, sys.argv[2:])
    tf.disable_v2_behavior()
    made = preprocessing.RecordInputImagePreprocessor(
        batch,
        [[batch, SIZE, SIZE, 3], [batch]],
        1,
        dtype=tf.float32,
        train=True,
        distortions=False,
        resize_method="bilinear",
        distort_color_in_yiq=False,
        fuse_decode_and_crop=True,
    )
    data = made.create_dataset(
        batch, 1, batch, datasets.ImagenetDataset(shards), "train", True, False, num_threads=threads
    )
    images, labels = made.create_iterator(data).get_next()
    assert images.dtype == tf.float32 and images.shape[1:] == (SIZE, SIZE, 3), images
    one = tf.group(images, labels)
    config = tf.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads)
    with tf.Session(config=config) as session:
        session.run(tf.tables_initializer())  # where it has put its iterator's
        for _ in range(WARM_UP):  # what prefetching has ready is not counted
            session.run(one)
        began = time.perf_counter(), time.process_time()
        for _ in range(steps):
            session.run(one)
        ended = time.perf_counter(), time.process_time()
    print(json.dumps([(end - begin) / (steps * batch) for begin, end in zip(began, ended, strict=True)]))


if __name__ == "__main__":
    main()
