"""What every program that is sent to a host takes with it."""
