"""What runs on each host of a job to read beats and stacks. Standard library only, Python 3.9."""
