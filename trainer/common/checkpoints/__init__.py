"""Checkpoints and weight files: writing, reading, copies, intervals."""
