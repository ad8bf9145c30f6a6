"""Conversion of ImageNet's files to TFRecord shards: `python -m trainer.imagenet --help`."""
