"""Hosts and how to reach them: a folder per verb of the command line, and the nouns that all of them use."""
