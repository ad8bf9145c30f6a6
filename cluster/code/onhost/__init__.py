"""Code on hosts: the store of archives, and working copies made from it."""
