"""`inv hosts.join`: a cluster made of hosts that accept logins, without a stack."""
