"""Measurements that run as MPI ranks under the trainers' runtime, with TensorFlow and Horovod."""
