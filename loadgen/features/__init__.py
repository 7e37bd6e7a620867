"""Features: each is a folder of what some runs do; what chooses among them, in the core, imports them.

A feature imports the core, and no other feature.
"""

from __future__ import annotations

from loadgen.run.verbs import MEASURE, PREPARE, READ, Verb

VERBS = {
    "quality": Verb(
        MEASURE,
        "Does a checkpoint still answer as its reference does?",
        "loadgen.features.quality.quality_command",
    ),
    "selftest": Verb(
        PREPARE,
        "How large is this client's own error on this machine?",
        "loadgen.features.selftest.selftest_command",
    ),
    "data": Verb(
        PREPARE,
        "What would a file of prompts, bodies or a trace send?",
        "loadgen.features.data.data_command",
    ),
    "explain": Verb(
        READ,
        "Why are TTFT and ITL of a run what they are?",
        "loadgen.features.attribution.explain_command",
    ),
    "export": Verb(
        READ,
        "How do I get a run into a table, llm-d, MLflow or W&B?",
        "loadgen.features.export.export_command",
    ),
    "merge": Verb(READ, "What did the shards of one plan measure together?", "loadgen.features.shards.merge"),
}

# What `loadgen data` does by a word of its own, in place of a file.
DATA_VERBS: dict[str, Verb] = {
    "learn": Verb(
        PREPARE,
        "How do I make a workload of a log, without its texts?",
        "loadgen.features.traces.learn.learn_command",
    ),
}
