"""AWS clusters: cluster file, CloudFormation template, and one module per operation on a stack."""
