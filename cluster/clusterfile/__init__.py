"""The cluster file: its fields, its text, a new one, and what a running stack holds of it."""
