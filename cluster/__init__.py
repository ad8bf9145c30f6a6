"""Command line for hosts and jobs: one folder per verb, and modules for the nouns that all of them use."""
