"""Ranks of a training: setup, schedules, metrics, stopping."""
