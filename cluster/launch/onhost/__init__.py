"""What runs on each host to say what it is. Standard library only, Python 3.9."""
