"""What runs on each host of a stage. `look` is sent; `s3` runs under the project's own environment."""
