"""Supervisor of a job: one process on the master, from submission to the job's end."""
