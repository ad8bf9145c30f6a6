"""Delivery of the operator's code: snapshots of it, stores on hosts, and working copies of jobs."""
