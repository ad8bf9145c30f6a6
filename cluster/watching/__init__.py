"""Whether a job's ranks go on: beats are read, a hang is found, and the rank named that the others wait for."""
