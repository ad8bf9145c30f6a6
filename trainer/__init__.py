"""Trainers as MPI ranks: what ResNet and Mask R-CNN share. Knows ranks, flags and files, and no hosts."""
