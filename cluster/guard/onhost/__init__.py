"""Modules of the guard that run on hosts, as root and from root's own copy. Standard library only, Python 3.9."""
