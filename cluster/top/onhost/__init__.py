"""What tells on each host how it is. Standard library only, Python 3.9."""
