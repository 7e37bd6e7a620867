"""Recognised rows: the requests of a file that is given without a name, by what its rows are."""

from __future__ import annotations

from msgspec.structs import replace

from loadgen.base.json_lines import Lines, OpenedFile
from loadgen.features.data import bodies, conversations, file_prompts, row_kinds, sharegpt, sheets
from loadgen.plan.request_sources import PlanInputs, SourcedRequests

_CONVERSATIONS, _HEAD_BYTES = b'"conversations"', 1 << 20  # a key of each entry, and where the first ends
# Each function makes the requests of a kind's rows.
_READERS = {
    row_kinds.PROMPTS: file_prompts.of_rows,
    row_kinds.CHAT: bodies.of_rows,
    row_kinds.COMPLETIONS: bodies.of_rows,
    row_kinds.CONVERSATIONS: conversations.of_rows,
    row_kinds.QUESTIONS: file_prompts.of_questions,
}


def requests(inputs: PlanInputs) -> SourcedRequests:
    """Make the requests of a file by the kind of its rows, in the file's order.

    `--num-prompts N` takes the first N; where the file holds fewer they are sent again from the first, unless
    --no-oversample is given. Raises UsageError that names file and row where the file cannot be sent.
    """
    path = inputs.profile.dataset_path
    file = OpenedFile(path, row_kinds.FLAG)
    if file.read_first_byte() == b"[":
        if _CONVERSATIONS not in file.read(file.begin, _HEAD_BYTES):
            raise file.refusal(
                "is a JSON list, and not of ShareGPT's conversations: make it one JSON object a line with "
                "jq -c '.[]'"
            )
        named = inputs.profile.model_copy(update={"dataset_name": "sharegpt"})
        return sharegpt.requests(replace(inputs, profile=named), by_role=True)
    is_sheet = sheets.is_sheet(file)
    head = None if is_sheet else Lines.open_head(file)
    kind = "" if head is None else row_kinds.find_first_kind(head)  # refused before every row is found
    lines = sheets.convert_rows(file) if is_sheet else Lines(file)
    kind = kind or row_kinds.find_first_kind(lines)
    if inputs.profile.dataset_category and kind != row_kinds.QUESTIONS:
        raise file.refusal(f"holds {kind}, and --dataset-category chooses from rows of `category`, `turns`")
    return _READERS[kind](lines, kind, inputs)
