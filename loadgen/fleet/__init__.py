"""Fleet: one plan sent by shards on the nodes of a Ray cluster, and joined where the command runs."""
