"""Simulated Kubernetes on this machine: an API for kubectl, its controllers, mpi-operator, and pods of a lab."""
