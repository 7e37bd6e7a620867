"""File prompts: rows of `prompt` and `output_tokens`, each sent as one prompt."""

from __future__ import annotations

import msgspec
import numpy as np

from loadgen.base.arrays import Bool, Int64
from loadgen.base.bounds import MOST_TOKENS
from loadgen.features.data import kinds, sent_rows
from loadgen.features.data.prompt_tokens import PromptTokens
from loadgen.plan.json_lines import Lines
from loadgen.plan.plan_inputs import PlanInputs, SourcedRequests
from loadgen.plan.requests import UNKNOWN_LEN, PromptRequests, fingerprint
from loadgen.wire.openai import Chat

_NO_LENGTH = "has no `output_tokens`: give each row its own, or pass --output-len N for all"


class FilePrompts(PromptRequests):
    """The prompts of a file, each row's sent as it stands: text, or token ids."""

    __slots__ = ("_ids", "_lines", "_rows", "features", "format", "input_lens", "output_lens")

    def __init__(self, lines: Lines, rows: Int64, lens: tuple[Int64, Int64], ids: Bool) -> None:
        self.format = kinds.PROMPTS
        self._lines, self._rows = lines, rows
        self.input_lens, self.output_lens = lens
        self._ids = ids
        self.features = {"token ids": int(ids.argmax())} if ids.any() else {}  # and the first that has them

    def prompt(self, i: int) -> list[int] | str:
        return _DECODE(self._lines[int(self._rows[i])]).prompt

    def where(self, i: int) -> str:
        """Request i by file and line, as `data.jsonl row 17`."""
        return self._lines.where(int(self._rows[i]))

    def digest(self) -> str:
        """A fingerprint of the file's bytes, of the rows that are sent and their lengths.

        What a tokenizer counted is no part of it: the same is sent without one.
        """
        columns = (self._rows, np.where(self._ids, self.input_lens, UNKNOWN_LEN), self.output_lens)
        return fingerprint(self.format, columns, [self._lines.digest().encode()])


class _Prompted(msgspec.Struct, gc=False):
    prompt: str | list[int]


_DECODE = msgspec.json.Decoder(_Prompted).decode
_TEXT_OR_IDS: msgspec.json.Decoder[str | list[int]] = msgspec.json.Decoder(str | list[int])
_LENGTH: msgspec.json.Decoder[int | None] = msgspec.json.Decoder(int | None)


def of_rows(lines: Lines, kind: str, inputs: PlanInputs) -> SourcedRequests:
    """The requests of rows of `prompt`; raises UsageError of a row that cannot be sent."""
    input_lens = np.full(len(lines), UNKNOWN_LEN, dtype=np.int64)
    output_lens = np.full(len(lines), UNKNOWN_LEN, dtype=np.int64)
    ids = np.zeros(len(lines), dtype=np.bool_)
    rows = sent_rows.order(len(lines), inputs)
    counting = PromptTokens(inputs, input_lens)
    asked = inputs.profile.custom_output_len or UNKNOWN_LEN
    chat = isinstance(inputs.dialect, Chat)
    for i, fields in enumerate(kinds.objects(lines, kind)):
        prompt = kinds.value(lines, i, fields, "prompt", _TEXT_OR_IDS)
        if not prompt:
            raise lines.refusal(i, "has an empty prompt: leave out the row")
        if not isinstance(prompt, str):
            if chat:
                raise lines.refusal(i, "has token ids, and the chat API takes text: use --backend openai")
            if min(prompt) < 0:
                raise lines.refusal(i, f"has the token id {min(prompt)}: ids are 0 or more")
            input_lens[i], ids[i] = len(prompt), True
        elif i < len(rows):
            counting.add(i, prompt)
        output_lens[i] = asked if asked > 0 else _length(lines, i, fields)
    counting.finish()
    made = FilePrompts(lines, rows, (input_lens[rows], output_lens[rows]), ids[rows])
    return SourcedRequests(made, sent_rows.facts(kind, lines, rows), notes=counting.notes)


def _length(lines: Lines, i: int, fields: kinds.RowObject) -> int:
    """The row's own length of its answer."""
    length = kinds.value(lines, i, fields, "output_tokens", _LENGTH) if "output_tokens" in fields else None
    if length is None:
        raise lines.refusal(i, _NO_LENGTH)
    if not 0 < length <= MOST_TOKENS:
        raise lines.refusal(i, f"has {length} `output_tokens`: give 1 to {MOST_TOKENS}")
    return int(length)
