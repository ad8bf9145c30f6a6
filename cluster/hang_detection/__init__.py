"""Hang detection for a job's ranks: reads heartbeats, finds a hang and names the rank that the others wait for."""
