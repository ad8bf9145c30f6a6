"""A cluster and its trainings on Kubernetes, from the same cluster file, by rendered manifests and kubectl."""
