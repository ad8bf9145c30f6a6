"""`inv metrics`: the cluster and its jobs as numbers for Prometheus."""
