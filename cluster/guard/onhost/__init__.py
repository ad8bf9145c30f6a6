"""What runs on hosts for the guard, as root and from root's own copy. Standard library only, Python 3.9."""
