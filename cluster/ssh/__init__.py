"""Access to hosts over SSH: options, shared connections, fan-out, limits, results, and programs sent to hosts."""
