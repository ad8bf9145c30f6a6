"""EKS clusters by CloudFormation: their template, and their operations by the same code as the bare cluster's stack."""
