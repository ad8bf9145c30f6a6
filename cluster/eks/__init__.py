"""The same cluster file, data and trainings on Kubernetes, by documents and the operator's own kubectl."""
