"""The guard: a cluster that nobody uses ends by itself, also when its master is dead; and what keeps it."""
