"""Programs that read heartbeats and stacks on each host of a job. Standard library only, Python 3.9."""
