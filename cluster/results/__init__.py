"""Upload of a job's report, metrics, logs and best checkpoint to S3, where they outlive the hosts."""
