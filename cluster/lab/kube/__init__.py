"""A stand-in of Kubernetes on this machine: an API for kubectl, its controllers, mpi-operator, pods of a lab."""
