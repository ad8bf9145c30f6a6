"""Guard that ends an idle cluster, even when its master is dead, and `inv keep`, which postpones that."""
