"""Modules that report each host's state for `inv top`. Standard library only, Python 3.9."""
