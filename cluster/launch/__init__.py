"""Launch of ranks: profiles, a check that all hosts agree, and the exact mpirun command line."""
