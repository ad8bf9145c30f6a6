"""What runs on each host of a copy: the relay. Standard library only, Python 3.9."""
