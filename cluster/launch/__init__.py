"""What a launch is: profiles, whether all hosts agree, and the exact mpirun command line."""
