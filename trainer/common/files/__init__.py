"""Files, command line and errors of the trainers."""
