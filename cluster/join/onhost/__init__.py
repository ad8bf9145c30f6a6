"""Modules that run on each host that joins. Standard library only, Python 3.9."""
