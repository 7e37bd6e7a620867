"""Features: each is a folder whose rows join the tables of the core, which names none of them.

A feature imports the core and no other feature; the core reaches it through `import_rows` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from types import ModuleType
from typing import TypeVar

from loadgen.base.errors import LoadgenError
from loadgen.run.verbs import MEASURE, PREPARE, READ, Verb

Row = TypeVar("Row")
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

# By feature: the tables of the core that it adds to, and its module with the rows. An API is a table of its
# own, by the end of its path, since a run imports one of them.
FEATURES: dict[str, dict[str, str]] = {
    "traces": {"replays": "trace_formats", "settings": "trace_settings"},
    "shapes": {
        "columns": "shape_figures",
        "parts": "shape_figures",
        "sections": "shape_figures",
        "shapes": "load_schedule",
    },
    "targets": {
        "columns": "target_figures",
        "doubts": "target_checks",
        "parts": "target_figures",
        "sections": "target_figures",
        "servers": "replicas",
    },
    "routed": {"doubts": "role_checks", "parts": "role_figures", "sections": "role_figures"},
    "sessions": {
        "columns": "session_figures",
        "doubts": "session_checks",
        "parts": "session_figures",
        "plan": "session_settings",
        "sections": "session_figures",
        "settings": "session_settings",
        "turns": "turn_sending",
    },
    "texts": {"counts": "prompt_counts", "settings": "text_settings", "texts": "prompt_texts"},
    "speculation": {
        "columns": "speculation_figures",
        "doubts": "speculation_checks",
        "parts": "speculation_figures",
        "sections": "speculation_lines",
    },
    "data": {"doubts": "data_checks", "settings": "data_settings", "steps": "sent_texts"},
    "sglang": {"/generate": "generate_api"},
    "responses": {"/responses": "responses_api"},
    "messages": {"/messages": "messages_api"},
    "images": {
        "columns": "image_figures",
        "doubts": "image_checks",
        "parts": "image_figures",
        "sections": "image_lines",
        "settings": "image_settings",
    },
    "attribution": {
        "columns": "attribution_columns",
        "doubts": "attribution_checks",
        "sections": "attribution_section",
        "tails": "attribution_checks",
    },
    "export": {"rows": "request_rows"},
    "peers": {"clients": "other_clients", "flags": "vllm_flags"},
    "saturation": {"saturation": "saturation_rule"},
    "display": {"displays": "live_display"},
    "ring": {"doubts": "ring_checks", "transports": "ring_choice"},
    "httpx": {"transports": "httpx_choice"},
    "launch": {"launch": "launched_server"},
    "selftest": {
        "capacity": "capacity",
        "checkable": "kept_selftests",
        "doubts": "kept_selftests",
        "steps": "kept_selftests",
    },
    "sensors": {
        "doubts": "state_checks",
        "options": "power_settings",
        "sections": "sensor_summary",
        "sensors": "sensor_discovery",
        "throttling": "nvml",
    },
    "shards": {"doubts": "shard_checks", "options": "shard_settings", "sections": "shard_lines"},
    "workers": {"processes": "workers"},
    "telemetry": {"options": "telemetry_settings"},
    "quality": {
        "options": "greedy.fingerprint_settings",
        "sections": "greedy.answer_check",
        "steps": "greedy.fingerprint_settings",
    },
    "roofline": {
        "checkable": "roofline_checks",
        "checks": "roofline_settings",
        "doubts": "roofline_checks",
        "options": "roofline_settings",
        "presets": "roofline_settings",
        "sections": "run_roofline",
        "steps": "run_roofline",
    },
}


def import_rows(table: str) -> list[ModuleType]:
    """Import the features' modules that have rows of a table of the core, in the features' order."""
    return [
        import_module(f"loadgen.features.{name}.{tables[table]}")
        for name, tables in FEATURES.items()
        if table in tables
    ]


def combine_rows(rows: Iterable[Row], table: str, name: Callable[[Row], str]) -> tuple[Row, ...]:
    """Merge the features' rows of a table into the core's rows.

    A feature's module has its rows in a dict of the table's name, by their place: "after" or "before" and the
    name of a row of the core. Rows of one place stand in the order of the features. Raises LoadgenError of a
    place that the core does not have.
    """
    placed: dict[str, list[Row]] = {}
    for module in import_rows(table):
        for place, own in getattr(module, table.upper()).items():
            placed.setdefault(place, []).extend(own)
    combined: list[Row] = []
    for row in rows:
        before, after = (placed.pop(f"{side} {name(row)}", ()) for side in ("before", "after"))
        combined += (*before, row, *after)
    if placed:
        raise LoadgenError(
            f"{table}: a feature's row is to stand {', '.join(placed)}: name a row of the core"
        )
    return tuple(combined)
