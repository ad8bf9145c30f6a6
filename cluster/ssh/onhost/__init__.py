"""Modules that are sent to a host with every program."""
