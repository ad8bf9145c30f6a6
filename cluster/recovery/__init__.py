"""Recovery of failed trainings: why an attempt ended, what to do about it, and the hosts of the next attempt."""
