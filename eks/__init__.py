"""Kubernetes: a cluster and its trainings, from the same cluster file, by rendered manifests and kubectl."""
