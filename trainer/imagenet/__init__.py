"""ImageNet from its files to TFRecord shards: `python -m trainer.imagenet --help`."""
