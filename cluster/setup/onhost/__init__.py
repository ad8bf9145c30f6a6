"""Modules that run on each host during set-up. Standard library only, Python 3.9."""
