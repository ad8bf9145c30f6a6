"""All tasks as one collection, the command `dlami`, and the modules for your own programs: `cluster` and `job`."""
