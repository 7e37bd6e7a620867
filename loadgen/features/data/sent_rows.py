"""Sent rows: which rows of a file the requests of a plan are, in the file's order, and what is reported."""

from __future__ import annotations

import numpy as np

from loadgen.base.arrays import Int64
from loadgen.plan.data_facts import DataFacts
from loadgen.plan.json_lines import Lines
from loadgen.plan.plan_inputs import PlanInputs

MOST_NAMES = 10_000  # of different models, held with the first row of each


def name_first(found: dict[str, int], name: str | None, i: int) -> None:
    """Keep the first place where a name is, of the first MOST_NAMES different names."""
    if name is not None and len(found) < MOST_NAMES:
        found.setdefault(name, i)


def order(rows: int, inputs: PlanInputs) -> Int64:
    """Which row each request sends, int64[requests]: those of the file in order, and then again."""
    most = rows if inputs.most is None else inputs.most
    return np.arange(min(most, rows) if inputs.profile.no_oversample else most, dtype=np.int64) % rows


def facts(kind: str, lines: Lines, sent: Int64, text: str = "") -> DataFacts:
    """What is to be reported of the rows that are sent; `sent` is int64[requests], of rows."""
    different = min(len(sent), int(sent.max(initial=-1)) + 1)
    return DataFacts(
        kind=kind,
        file=lines.path,
        file_digest=lines.digest(),
        rows=len(lines),
        sent=different,
        repeated=len(sent) - different,
        text=text,
    )
