"""Staging programs that run on each host. `look` is sent to it, `s3` runs in the project's own environment."""
