"""Health programs that run on the hosts: probes, readings, measurements. Standard library only, Python 3.9."""
