"""Fleet: shards of one plan started on a Ray cluster or by Kubernetes, Slurm or MPI, and joined."""
