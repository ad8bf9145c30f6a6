"""Trainings the operator asked for: each a folder on the shared file system and a supervisor on the master."""
