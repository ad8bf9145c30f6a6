"""A fake S3 that lab hosts reach."""

BUCKET = "bucket"
