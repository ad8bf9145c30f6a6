"""Curves of a job: its metrics file, in buckets, and the map of its ranks."""
