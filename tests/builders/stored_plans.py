"""Files that are sent, each with the plan that is made of it.

`python tests/builders/stored_plans.py` stores the plans again in tests/features/stored_plans.json: look at
what has changed. One more file is one more object there, with any plan until it is stored. A file is given by
its name and text, or is one below tests/data. FILE stands for its path: in notes, and among the keys of the
profile that sends it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import tempfile
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import msgspec
from msgspec.structs import replace

from builders.refused_files import SUBJECT
from loadgen.plan import plan, profile
from loadgen.plan.plan import Plan
from loadgen.plan.planned_requests import Turns
from loadgen.plan.request_sources import Seed

STORED = Path(__file__).parents[1] / "features" / "stored_plans.json"
DATA = Path(__file__).parents[1] / "data"
_LISTED = 16  # requests of which lengths, times and waits are shown; of more their number says enough
_BODIES = 64
_UNSHOWN = ("file", "file_digest", "input", "output")  # of facts: they follow from what is shown


class StoredPlan(TypedDict):
    """What is shown by a file, how it is sent, and what is made of it."""

    shows: str
    file: str
    text: NotRequired[str]
    keys: dict[str, object]
    tokenizer: NotRequired[bool]  # whether that of the tests counts texts
    plan: dict[str, Any]


def read_stored() -> list[StoredPlan]:
    """Read the plans that are stored, without those that need transformers where it is not installed."""
    stored: list[StoredPlan] = json.loads(STORED.read_text("utf-8"))
    can_count = importlib.util.find_spec("transformers") is not None
    return [row for row in stored if can_count or "tokenizer" not in row]


def describe(row: StoredPlan, directory: Path) -> dict[str, Any]:
    """Make the plan of a file, in a directory or below tests/data; return what it is, as JSON."""
    path = DATA / row["file"]
    if "text" in row:
        path = directory / row["file"]
        path.write_bytes(row["text"].encode("utf-8", "surrogateescape"))
    keys = {
        key: value.replace("FILE", str(path)) if isinstance(value, str) else value
        for key, value in row["keys"].items()
    }
    subject = replace(SUBJECT, tokenizer=str(DATA / "tokenizer")) if "tokenizer" in row else SUBJECT
    made = plan.make(profile.build({"name": "p", **keys}), subject, Seed(1, chosen=True))
    found = _describe_plan(made)
    named: dict[str, Any] = json.loads(json.dumps(found).replace(str(path), "FILE"))
    return {key: value for key, value in named.items() if value not in (None, [], {})}


def _describe_plan(made: Plan) -> dict[str, Any]:
    requests, live = made.requests, made.profile.assistant == "live" and made.turns is not None
    facts = {key: value for key, value in msgspec.to_builtins(made.facts).items() if key not in _UNSHOWN}
    bodies = [made.body(i) for i in range(min(len(made), _BODIES))]
    answers = [{"role": "assistant", "content": "live"}]
    return {
        "requests": len(made),
        "path": made.path,
        "format": requests.format,
        "lens": _list(zip(requests.input_lens.tolist(), requests.output_lens.tolist(), strict=True)),
        "due_ms": None if made.offsets_ns is None else _list(made.offsets_ns / 1e6),
        "turns": None if made.turns is None else _describe_turns(made.turns),
        "sessions": None if made.sessions is None else _list(made.sessions.tolist()),
        "cancelled": None if made.cancellations is None else made.cancellations.list_own(),
        "features": getattr(requests, "features", None),
        "models": getattr(requests, "models", None),
        "rows": [requests.name_row(i) for i in range(min(len(made), 2)) if hasattr(requests, "name_row")],
        "notes": made.notes,
        "facts": {key: value for key, value in facts.items() if value not in (None, "", 0, (), {}, [])},
        "digest": made.digest(),
        "bodies": hashlib.blake2b(b"\n".join(bodies), digest_size=8).hexdigest(),
        "live": json.loads(made.body_after(len(made) - 1, answers)).get("messages") if live else None,
    }


def _describe_turns(turns: Turns) -> dict[str, Any]:
    found = {"counts": _list(turns.counts.tolist()), "delays_ms": _list(turns.delays_ns / 1e6)}
    if (waits := turns.waits) is not None:
        found["before"] = _list(map(waits.list_before, range(int(turns.begins[-1]))))
        found["tools_ms"] = [] if waits.tool_ns is None else _list(waits.tool_ns / 1e6)
        if turns.has_branches:
            found["lanes"], found["depths"] = _list(waits.lanes.tolist()), _list(waits.depths.tolist())
            found["roles"] = _list(waits.role_names[role] for role in waits.roles.tolist())
    return {key: value for key, value in found.items() if value}


def _list(values: Iterable[Any]) -> list[Any]:
    return [float(value) if hasattr(value, "dtype") else value for value in islice(values, _LISTED)]


def main() -> None:
    """Store the plan of each file again."""
    with tempfile.TemporaryDirectory() as directory:
        rows = [{**row, "plan": describe(row, Path(directory))} for row in read_stored()]
    lines = (json.dumps(row, ensure_ascii=False) for row in rows)
    STORED.write_text("[\n" + ",\n".join(lines) + "\n]\n", "utf-8")


if __name__ == "__main__":
    main()
