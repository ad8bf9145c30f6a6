"""The CloudFormation template in Troposphere, one module per part; nothing here asks AWS."""
