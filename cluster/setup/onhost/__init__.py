"""What runs on each host that is set up. Standard library only, Python 3.9."""
