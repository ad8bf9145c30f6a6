"""What runs on each host for healing. Standard library only, Python 3.9."""
