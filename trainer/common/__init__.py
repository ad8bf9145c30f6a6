"""Code that the trainers share, in packages: checkpoints, data, ranks, files."""
