"""What of it runs on hosts: the archives on the shared folder, each host's own copy, the project's folder."""
