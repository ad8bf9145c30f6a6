"""`inv copy`: files to all hosts, each passing them on to the next."""
