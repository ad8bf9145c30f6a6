"""`inv tensorboard`, `inv jupyter`: pages that the master serves to one person, over the open SSH connection."""
