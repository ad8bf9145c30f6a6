"""Training jobs of the operator. A job is a folder on the shared file system and a supervisor process on the master."""
