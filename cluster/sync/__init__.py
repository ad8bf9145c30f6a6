"""`inv sync`, and the operator's own code for `inv train.run`: what git tracks here, brought to the nodes."""
