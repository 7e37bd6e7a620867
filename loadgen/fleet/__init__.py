"""Fleet: one plan sent by shards on the nodes of a Ray cluster, and joined where the command runs."""

from __future__ import annotations

from loadgen.run.verbs import PREPARE, Verb

VERBS = {
    "shards": Verb(
        PREPARE,
        "How do I send one plan from Kubernetes, Slurm or MPI?",
        "loadgen.fleet.shards_command",
    ),
}
