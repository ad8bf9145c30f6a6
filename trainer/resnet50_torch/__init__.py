"""The ResNet trainer on PyTorch: the same shards, recipes, schedules, checkpoints and records; ranks by DDP."""
