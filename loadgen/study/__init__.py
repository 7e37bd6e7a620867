"""Study: what is made of many runs: comparisons, audits, pages, series, other clients' results."""

from __future__ import annotations

from loadgen.run.verbs import MEASURE, READ, Verb

# What `loadgen data` does by a word of its own.
DATA_VERBS = {
    "describe": Verb(
        READ,
        "What are a workload's arrivals, lengths and reuse like?",
        "loadgen.study.describe.describe_command",
    ),
}
VERBS = {
    "ladder": Verb(
        MEASURE,
        "How fast is one request at growing prompt lengths?",
        "loadgen.study.series.ladder_command",
    ),
    "sweep": Verb(
        MEASURE,
        "How do figures change with load, length or settings?",
        "loadgen.study.series.sweep.sweep_command",
    ),
    "limit": Verb(
        MEASURE,
        "What is the highest load that still meets --slo?",
        "loadgen.study.series.limit.limit_command",
    ),
    "campaign": Verb(
        MEASURE,
        "Which of several checkpoints or servers should I take?",
        "loadgen.study.series.campaign.campaign_command",
    ),
    "report": Verb(
        READ,
        "What did saved runs measure, as a page or as text?",
        "loadgen.study.pages.report_command",
    ),
    "compare": Verb(
        READ,
        "Which checkpoint is faster, and by how much?",
        "loadgen.study.compare_command",
    ),
    "gate": Verb(
        READ,
        "Is a build slower than its base?",
        "loadgen.study.gate.gate_command",
    ),
    "history": Verb(
        READ,
        "When did the figures of a load change, over months?",
        "loadgen.study.history.history_command",
    ),
    "audit": Verb(
        READ,
        "Which published figures are impossible or mislabelled?",
        "loadgen.study.audit.audit_command",
    ),
    "bundle": Verb(
        READ,
        "How do I send runs so that others can check them?",
        "loadgen.study.bundle_command",
    ),
    "verify": Verb(
        READ,
        "Do the figures of a bundle or run follow from its data?",
        "loadgen.study.verify.verify_command",
    ),
}
