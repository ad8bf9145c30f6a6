"""`inv kill` and `inv reboot`: what ended trainings left behind, and its end."""
