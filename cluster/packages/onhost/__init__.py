"""What runs on each host for a program's packages: environments, a container. Standard library only, Python 3.9."""
