"""All tasks as one collection, the command `dlami`, and what one's own programs import: `cluster` and `job`."""
