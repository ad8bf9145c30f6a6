"""What runs on the hosts for health: probes, readings, measures. Standard library only, Python 3.9."""
