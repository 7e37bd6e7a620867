"""Run: one command or call from flags to exit code: launch or attach, warm up, measure, follow up, finish."""

from __future__ import annotations

from loadgen.run.verbs import MEASURE, PREPARE, Verb

VERBS = {
    "bench": Verb(MEASURE, "How fast is a server under a given load?", "loadgen.cli:run_bench"),
    "profiles": Verb(
        PREPARE,
        "Which workloads are shipped, and what does one send?",
        "loadgen.cli:list_profiles",
    ),
    "completion": Verb(
        PREPARE, "How does my shell complete verbs and flags?", "loadgen.run.command.completion"
    ),
    "engine": Verb(PREPARE, "How do I try this without a server?", "loadgen_servers.engine.cli"),
}
