"""The command line: all tasks as one collection, and the command `dlami` that runs them from any folder."""
