"""A cluster on this machine: each host a tree of namespaces with an sshd of its own."""
