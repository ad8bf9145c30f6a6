"""Lab: a simulated cluster on this machine, where each host is a tree of namespaces with its own sshd."""
