"""Modules that run on each host for a program's packages: environments, containers.

Standard library only, Python 3.9.
"""
