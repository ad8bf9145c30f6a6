"""`inv top`: all hosts and the running jobs as they are now, refreshed every second."""
