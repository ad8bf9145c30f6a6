"""`inv kill` and `inv reboot`: removal of what ended trainings left behind."""
