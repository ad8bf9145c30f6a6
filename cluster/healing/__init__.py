"""Trainings that heal themselves: what ended an attempt, what is done about it, and on which hosts."""
