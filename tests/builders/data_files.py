"""Files of rows, and the plans that are made of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from loadgen.engines.engines import ENGINES
from loadgen.plan import plan, profile
from loadgen.plan.plan import Plan
from loadgen.plan.request_sources import ModelTarget, Seed


def jsonl(directory: Path, rows: Iterable[Mapping[str, Any] | bytes], name: str = "data.jsonl") -> str:
    """The path of a file of these rows, those in bytes as they are."""
    raw = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    (directory / name).write_bytes(b"\n".join(raw) + b"\n")
    return str(directory / name)


def planned(path: str, **keys: Any) -> Plan:
    """The plan of a file that is recognised by its keys, for vLLM."""
    asked = profile.build({"dataset_path": path, "max_concurrency": 1, **keys})
    return plan.make(asked, ModelTarget(ENGINES[0], "served"), Seed(1, chosen=True))
