"""What runs on the hosts themselves: sent there over SSH, standard library only."""
