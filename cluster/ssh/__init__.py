"""The one way to hosts: options, open connections, fan-out, limits, results, and the sender of programs."""
