"""Cluster file: one dataclass per table, the reader, the text of a new file; and the table of instance types."""
