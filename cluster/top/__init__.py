"""`inv top`: live view of all hosts and the active jobs, refreshed every second."""
