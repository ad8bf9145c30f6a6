"""The command line, by noun: each task is a few lines that turn arguments into one call."""
