"""`inv stage` and `inv data.status`: data between S3 and the hosts. Each host transfers its own."""
