"""Model behind `inv train.estimate`: speed, duration and price of a training on machines that are not paid for yet."""
