"""Data sets: shards, records, image files, order of the examples."""
