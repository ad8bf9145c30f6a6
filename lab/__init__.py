"""A cluster on this machine: each host is a tree of namespaces with its own sshd."""
