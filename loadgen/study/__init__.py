"""Study: what is made of many runs: comparisons, audits, pages, series, other clients' results."""

from __future__ import annotations

from loadgen.run.verbs import MEASURE, READ, Verb

# What `loadgen data` does by a word of its own.
DATA_VERBS = {
    "describe": Verb(
        READ,
        "draw arrivals, lengths and reuse of a workload, next to another",
        "loadgen.study.describe.describe_command",
    ),
}
VERBS = {
    "ladder": Verb(
        MEASURE,
        "speed of one request at growing prompt lengths, as Qwen's tables",
        "loadgen.study.series.ladder_command",
    ),
    "sweep": Verb(
        MEASURE,
        "one workload at many loads, lengths or server settings",
        "loadgen.study.series.sweep.sweep_command",
    ),
    "limit": Verb(
        MEASURE,
        "the highest load that still meets --slo, with its interval",
        "loadgen.study.series.limit.limit_command",
    ),
    "campaign": Verb(
        MEASURE,
        "checkpoints × servers × profiles from one file, cells repeated",
        "loadgen.study.series.campaign.campaign_command",
    ),
    "report": Verb(
        READ,
        "render saved runs as text, HTML, pictures, Markdown or CSV",
        "loadgen.study.pages.report_command",
    ),
    "compare": Verb(
        READ,
        "runs, campaigns, other clients' results: one table with verdicts",
        "loadgen.study.compare_command",
    ),
    "gate": Verb(
        READ,
        "is a build slower than its base? exit codes for a pipeline",
        "loadgen.study.gate.gate_command",
    ),
    "history": Verb(
        READ,
        "one load over months: its figures, and where they changed",
        "loadgen.study.history.history_command",
    ),
    "audit": Verb(
        READ,
        "find impossible or mislabelled figures in published results",
        "loadgen.study.audit.audit_command",
    ),
    "bundle": Verb(
        READ,
        "runs as one file that proves itself, to be sent to others",
        "loadgen.study.bundle_command",
    ),
    "verify": Verb(
        READ,
        "compute every figure of a bundle or run again, name what differs",
        "loadgen.study.verify.verify_command",
    ),
}
