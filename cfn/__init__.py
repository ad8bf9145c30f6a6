"""A cluster on AWS: its file, its CloudFormation template and its life, one module per verb."""
