"""Code on hosts: the store of archives, working copies of it, and the update of the project's folder."""
