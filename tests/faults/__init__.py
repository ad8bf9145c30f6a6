"""Faults drawn from a grid and tried on lab hosts: what breaks, where, when, during which command."""
