"""A cluster on EKS by CloudFormation: its template, and its life by the same code as the bare cluster's stack."""
