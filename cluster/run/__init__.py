"""`inv run`: a command on many hosts, its progress, its answers made short, what the last run left."""
