"""Modules that run on each host to find leftovers. Standard library only, Python 3.9."""
