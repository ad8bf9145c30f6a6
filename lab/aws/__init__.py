"""Fake AWS for tests and for trying things out: moto over HTTP behind our own CloudFormation and Auto Scaling.

moto's own CloudFormation drops what it does not know, cannot delete most stacks, and has no signals, rollback or
progress. Its groups replace everything at an update. This package fails loudly on anything it does not model. See
docs/stack.md.
"""

from lab.aws.server import FakeAws, start

__all__ = ["FakeAws", "start"]
