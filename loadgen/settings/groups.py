"""Groups: the sections of `loadgen bench --help`, in their order."""

from __future__ import annotations

SERVER = "server"
LAUNCH = "a server started for the run"
WORKLOAD = "workload"
SHAPES = "load over time, and classes (docs/load-shapes.md)"
SESSIONS = "sessions of several turns (docs/sessions.md)"
DATA = "data (docs/datasets.md)"
LENGTHS = "lengths and text of random prompts"
TRACES = "traces (docs/traces.md)"
REQUESTS = "requests"
RUN = "the run"
SHARDS = "one plan sent by several commands (docs/shards.md)"
CLUSTER = "a plan sent from a Ray cluster (docs/shards.md)"
STOP = "rules to stop (docs/reliability.md)"
ROOFLINE = "roofline"
OUTPUT = "output"
HIDDEN = "none"  # flags that no help lists
ORDER = (
    *(SERVER, LAUNCH, WORKLOAD, SHAPES, SESSIONS, DATA, LENGTHS, TRACES, REQUESTS, RUN, SHARDS, CLUSTER),
    *(STOP, ROOFLINE, OUTPUT),
)
