"""`inv setup`: the project's environment, the operator's own script and node settings, in addition to the image."""
