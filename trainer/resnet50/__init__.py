"""ResNet on ImageNet over Horovod: `python -m trainer.resnet50 --help`."""
