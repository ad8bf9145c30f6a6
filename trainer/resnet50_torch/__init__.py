"""ResNet trainer on PyTorch: the same shards, recipes, schedules, checkpoints and records as on TensorFlow; ranks by
DDP.
"""
