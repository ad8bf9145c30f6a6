"""My packages: the environment of a user's own program, made once and the same on every host that runs it."""
