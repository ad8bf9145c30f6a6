"""Programs that run on each host for a job: the claim that keeps other jobs off it.

Standard library only, Python 3.9.
"""
