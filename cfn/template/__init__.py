"""CloudFormation template of the bare cluster in Troposphere, one module per part. No code here queries AWS."""
