"""ResNet trainer on ImageNet with Horovod: `python -m trainer.resnet50 --help`."""
