"""Workers: a plan sent and decoded by several processes of this machine, which one leads."""
