"""Run: one command or call from flags to exit code: launch or attach, warm up, measure, follow up, finish."""

from __future__ import annotations

from loadgen.run.verbs import MEASURE, PREPARE, Verb

VERBS = {
    "bench": Verb(MEASURE, "run a workload and print the Serving Benchmark Result", "loadgen.cli:run_bench"),
    "profiles": Verb(
        PREPARE,
        "list the shipped workloads, or show one: loadgen profiles high-load",
        "loadgen.cli:list_profiles",
    ),
    "completion": Verb(
        PREPARE, "print what completes verbs and flags in a shell", "loadgen.run.command.completion"
    ),
    "engine": Verb(PREPARE, "start the embedded engine by itself", "loadgen_servers.engine.cli"),
}
