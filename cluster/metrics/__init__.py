"""`inv metrics`: the state of the cluster and its jobs in the format of Prometheus."""
