"""Recognised rows: the requests of a file that is given without a name, by what its rows are."""

from __future__ import annotations

import importlib
from typing import Protocol, cast

import numpy as np
from msgspec.structs import replace

from loadgen.base.arrays import Int64
from loadgen.base.json_lines import Lines, OpenedFile
from loadgen.features.data import row_kinds, sheets
from loadgen.plan.planned_requests import DataFacts
from loadgen.plan.request_sources import PlanInputs, SourcedRequests

FLAG = "--dataset-path"
_SHAREGPT = "sharegpt"
_CONVERSATIONS, _HEAD_BYTES = b'"conversations"', 1 << 20  # a key of each entry, and where the first ends
# What makes requests of a kind's rows.
_READERS = {
    row_kinds.PROMPTS: "loadgen.features.data.file_prompts",
    row_kinds.CHAT: "loadgen.features.data.bodies",
    row_kinds.COMPLETIONS: "loadgen.features.data.bodies",
    row_kinds.CONVERSATIONS: "loadgen.features.data.conversations",
    row_kinds.QUESTIONS: "loadgen.features.data.questions",
}
_MOST_NAMES = 10_000  # of different models, held with the first row of each


class _Reader(Protocol):
    def of_rows(self, lines: Lines, kind: str, inputs: PlanInputs) -> SourcedRequests: ...


def requests(inputs: PlanInputs) -> SourcedRequests:
    """Make the requests of a file by the kind of its rows, in the file's order.

    `--num-prompts N` takes the first N; where the file holds fewer they are sent again from the first, unless
    --no-oversample is given. Raises UsageError that names file and row where the file cannot be sent.
    """
    path = inputs.profile.dataset_path
    file = OpenedFile(path, FLAG)
    if file.read_first_byte() == b"[":
        return _make_sharegpt(inputs, file)
    is_sheet = sheets.is_sheet(file)
    head = None if is_sheet else Lines.open_head(file)
    kind = "" if head is None else row_kinds.find_first_kind(head)  # refused before every row is found
    lines = sheets.convert_rows(file) if is_sheet else Lines(file)
    kind = kind or row_kinds.find_first_kind(lines)
    if inputs.profile.dataset_category and kind != row_kinds.QUESTIONS:
        raise file.refusal(f"holds {kind}, and --dataset-category chooses from rows of `category`, `turns`")
    reader = cast(_Reader, importlib.import_module(_READERS[kind]))
    return reader.of_rows(lines, kind, inputs)


def _make_sharegpt(inputs: PlanInputs, file: OpenedFile) -> SourcedRequests:
    """Make the requests of ShareGPT's JSON list, its turns taken by who speaks them; raises UsageError."""
    if _CONVERSATIONS not in file.read(file.begin, _HEAD_BYTES):
        raise file.refusal(
            "is a JSON list, and not of ShareGPT's conversations: make it one JSON object a line with "
            "jq -c '.[]'"
        )
    source = importlib.import_module(f"loadgen.features.data.{_SHAREGPT}")
    named = inputs.profile.model_copy(update={"dataset_name": _SHAREGPT})
    return cast(SourcedRequests, source.requests(replace(inputs, profile=named), by_role=True))


def name_first(found: dict[str, int], name: str | None, i: int) -> None:
    """Set the index of a name in `found` if it has none.

    None, and names after the first 10,000, are ignored.
    """
    if name is not None and len(found) < _MOST_NAMES:
        found.setdefault(name, i)


def order_rows(rows: int, inputs: PlanInputs) -> Int64:
    """Return which row each request sends, int64[requests]: the file's order, repeated up to `inputs.most`.

    Not repeated with `no_oversample`; without `most` it is the file once.
    """
    most = rows if inputs.most is None else inputs.most
    return np.arange(min(most, rows) if inputs.profile.no_oversample else most, dtype=np.int64) % rows


def make_facts(kind: str, lines: Lines, sent: Int64, text: str = "") -> DataFacts:
    """Make the facts of the rows that are sent, each counted once, and of those sent again.

    `sent` is int64[requests], row numbers; the rows from the first to its greatest are all sent.
    """
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
