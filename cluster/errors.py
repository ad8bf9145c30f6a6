"""Errors that the user can act on: one base class, and an exit code on each class."""


class ClusterError(Exception):
    """Expected error. Its text states what happened, where, and what to do next. Printed without a traceback."""

    exit_code = 1


class ConfigError(ClusterError):
    """Error for input that cannot be used. Nothing has been changed."""

    exit_code = 2


class NothingToDo(ClusterError):
    """Signal that the requested state is already there."""

    exit_code = 0
