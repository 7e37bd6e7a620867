"""Traces for the tests: where the excerpts are, small ones of each format, and plans of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from builders.required import require
from loadgen.engines.engines import UNKNOWN
from loadgen.plan import plan, profile
from loadgen.plan.plan import Plan
from loadgen.plan.planned_requests import Waits
from loadgen.plan.request_sources import ModelTarget, Seed

EXCERPTS = Path(__file__).parents[1] / "data" / "traces"
WEKA_AGENTS = EXCERPTS / "weka_agents.jsonl"
TRACELAB = EXCERPTS / "tracelab_rounds.jsonl"
OTEL_GENAI = EXCERPTS / "otel_genai.jsonl"
OTEL_FAN_IN = EXCERPTS / "otel_fan_in.json"
SUBJECT = ModelTarget(UNKNOWN, "m", vocab_size=4000)

BAILIAN: list[Mapping[str, Any]] = [
    {"chat_id": 159, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 40, "output_length": 132,
     "type": "text", "turn": 1, "hash_ids": [1089, 1090, 1091]},
    {"chat_id": 160, "parent_chat_id": 159, "timestamp": 61.614, "input_length": 50, "output_length": 7,
     "type": "text", "turn": 2, "hash_ids": [1089, 1090, 1092, 1093]},
]  # fmt: skip
TIMED: list[Mapping[str, Any]] = [
    {"timestamp": 0, "input_length": 40, "output_length": 8, "hash_ids": [1, 2, 3]},
    {"timestamp": 1.5, "input_length": 33, "output_length": 9, "hash_ids": [1, 2, 4]},
]


def jsonl(directory: Path, rows: Sequence[Mapping[str, Any]], name: str = "trace.jsonl") -> Path:
    """A file with one row of JSON a line."""
    path = directory / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def text(directory: Path, content: str, name: str = "trace.csv") -> Path:
    """A file with this content."""
    path = directory / name
    path.write_text(content)
    return path


def planned(path: Path, seed: int = 7, **keys: Any) -> Plan:
    """The plan of a trace."""
    table = {"name": "p", "trace": str(path), **keys}
    return plan.make(profile.build(table), SUBJECT, Seed(seed, chosen=True))


def prompts(of: Plan) -> list[list[int]]:
    """The prompts of a plan, as token ids."""
    return [json.loads(of.body(i))["prompt"] for i in range(len(of))]


def offsets_ms(of: Plan) -> list[float]:
    """When each request is due, in milliseconds."""
    return [offset / 1e6 for offset in require(of.offsets_ns).tolist()]


def waits_of(of: Plan) -> Waits:
    """What each request of a plan of sessions waits for."""
    return require(require(of.turns).waits)
