"""Data between S3 and the hosts, each for itself, and what of it is there. `s3` and `look` run on the hosts."""
