"""Relay that runs on each host of a copy. Standard library only, Python 3.9."""
