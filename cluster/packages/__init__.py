"""Package environments: the environment of a user's program, built once and equal on every host that runs it."""
