"""`inv setup`: what a node needs beside its image: the project's environment, the operator's own script, settings."""
