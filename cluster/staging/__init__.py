"""`inv stage` and `inv data.status`: data between S3 and the hosts, each host for itself."""
