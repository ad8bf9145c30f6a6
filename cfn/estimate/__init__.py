"""`inv train.estimate`: how fast, how long and how dear a training is on other machines, before one is paid."""
