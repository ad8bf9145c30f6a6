"""Jobs on the master: one process for each request."""
