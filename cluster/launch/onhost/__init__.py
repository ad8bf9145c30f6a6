"""Modules that run on each host for a launch. Standard library only, Python 3.9."""
