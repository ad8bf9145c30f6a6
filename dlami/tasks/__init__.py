"""The tasks by noun: each is a few lines that turn arguments into one call."""
