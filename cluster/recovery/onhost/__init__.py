"""Programs that run on each host for recovery. Standard library only, Python 3.9."""
