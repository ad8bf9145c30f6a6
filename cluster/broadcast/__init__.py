"""`inv copy`: broadcast of files to all hosts, along a chain in which each host sends to the next."""
