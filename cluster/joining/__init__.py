"""`inv hosts.join`: a cluster from addresses that one can log in to, without a stack."""
