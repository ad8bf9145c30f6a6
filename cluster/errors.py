"""What can go wrong in a way the user can act on: one root, an exit code on the class."""


class ClusterError(Exception):
    """Expected trouble: the text says what happened, where, and what to do next. Never shown with a traceback."""

    exit_code = 1


class ConfigError(ClusterError):
    """The user's input cannot be used; nothing has been changed."""

    exit_code = 2


class NothingToDo(ClusterError):
    """What was asked for is already so."""

    exit_code = 0
