"""ResNet trainer on PyTorch, with ranks by DDP.

Shards, recipes, schedules, checkpoints and records are the same as on TensorFlow.
"""
