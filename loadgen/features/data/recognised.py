"""Recognised: the requests of a file that is given without a name, by what its rows are."""

from __future__ import annotations

import importlib
from typing import Protocol, cast

from msgspec.structs import replace

from loadgen.features.data import kinds
from loadgen.plan import sheets
from loadgen.plan.json_lines import Lines, OpenedFile
from loadgen.plan.plan_inputs import PlanInputs, SourcedRequests

FLAG = "--dataset-path"
_SHAREGPT = "sharegpt"
_CONVERSATIONS, _HEAD_BYTES = b'"conversations"', 1 << 20  # a key of each entry, and where the first ends
# What makes requests of a kind's rows.
_READERS = {
    kinds.PROMPTS: "loadgen.features.data.file_prompts",
    kinds.CHAT: "loadgen.features.data.bodies",
    kinds.COMPLETIONS: "loadgen.features.data.bodies",
    kinds.CONVERSATIONS: "loadgen.features.data.recorded_turns",
}


class _Reader(Protocol):
    def of_rows(self, lines: Lines, kind: str, inputs: PlanInputs) -> SourcedRequests: ...


def requests(inputs: PlanInputs) -> SourcedRequests:
    """The requests of a file by the kind of its rows, in the file's order.

    `--num-prompts N` takes the first N; where the file holds fewer they are sent again from the first, unless
    --no-oversample is given. Raises UsageError that names file and row where the file cannot be sent.
    """
    path = inputs.profile.dataset_path
    file = OpenedFile(path, FLAG)
    if file.first_character() == b"[":
        return _sharegpt(inputs, file)
    lines = sheets.rows(file) if sheets.is_sheet(file) else Lines(file)
    kind = kinds.first_kind(lines)
    reader = cast(_Reader, importlib.import_module(_READERS[kind]))
    return reader.of_rows(lines, kind, inputs)


def _sharegpt(inputs: PlanInputs, file: OpenedFile) -> SourcedRequests:
    """A JSON list, which ShareGPT's is: by the rules of its name."""
    if _CONVERSATIONS not in file.read(file.begin, _HEAD_BYTES):
        raise file.refusal(
            "is a JSON list, and not of ShareGPT's conversations: make it one JSON object a line with "
            "jq -c '.[]'"
        )
    source = importlib.import_module(f"loadgen.features.data.{_SHAREGPT}")
    named = inputs.profile.model_copy(update={"dataset_name": _SHAREGPT})
    return cast(SourcedRequests, source.requests(replace(inputs, profile=named)))
