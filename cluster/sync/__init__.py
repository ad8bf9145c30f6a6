"""`inv sync`, and the operator's own code for `inv train.run`: brings what git tracks here to the nodes."""
