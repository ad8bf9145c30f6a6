"""`inv run`: a command on many hosts, its progress, its folded output, and the record of the last run."""
