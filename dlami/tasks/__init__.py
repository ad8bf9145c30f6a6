"""Tasks of the command line, a module per group. Each task turns its arguments into one call."""
