"""Sync programs that run on hosts: archives on the shared folder, each host's own copy, the project's folder."""
