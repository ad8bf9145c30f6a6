"""What a job leaves where its hosts' end does not reach: report, metrics, logs and best checkpoint in S3."""
