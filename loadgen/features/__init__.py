"""Features: each is a folder of what some runs do; what chooses among them, in the core, imports them.

A feature imports the core, and no other feature.
"""

from __future__ import annotations

from loadgen.run.verbs import MEASURE, PREPARE, READ, Verb

VERBS = {
    "quality": Verb(
        MEASURE,
        "how far a served checkpoint's distribution is from another's",
        "loadgen.features.quality.quality_command",
    ),
    "selftest": Verb(
        PREPARE,
        "measure this client's own error against a null server",
        "loadgen.features.selftest.selftest_command",
    ),
    "data": Verb(
        PREPARE,
        "show what a file of prompts, bodies or a trace would send",
        "loadgen.features.data.data_command",
    ),
    "explain": Verb(
        READ,
        "why TTFT and ITL of a run are what they are, in a page",
        "loadgen.features.attribution.explain_command",
    ),
    "export": Verb(
        READ,
        "write a run for others: rows, llm-d, InferenceX, MLflow, W&B",
        "loadgen.features.export.export_command",
    ),
    "merge": Verb(
        READ, "join the runs of one plan's shards: bench --shard I/N", "loadgen.features.shards.merge"
    ),
}

# What `loadgen data` does by a word of its own, in place of a file.
DATA_VERBS: dict[str, Verb] = {
    "learn": Verb(
        PREPARE,
        "make a workload of a service's log, without its texts, names and ids",
        "loadgen.features.traces.learn.learn_command",
    ),
}
