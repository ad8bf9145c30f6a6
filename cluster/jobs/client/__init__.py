"""Jobs on the operator's machine: requests to the master, and their output."""
