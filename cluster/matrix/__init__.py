"""`inv train.matrix`: a matrix of flags, ranks and programs, each cell a job, and their results in one table."""
