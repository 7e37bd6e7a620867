"""Fleet: one plan sent by shards on the nodes of a Ray cluster, and joined where the command runs."""

from __future__ import annotations

from loadgen.run.verbs import PREPARE, Verb

VERBS = {
    "shards": Verb(
        PREPARE,
        "print a Kubernetes Job, Slurm or MPI script of one plan's shards",
        "loadgen.fleet.shards_command",
    ),
}
