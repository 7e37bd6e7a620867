"""Bodies: whole chat and completion requests, sent as they stand in the file."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import numpy as np

from loadgen.base.arrays import Int64
from loadgen.base.errors import UsageError
from loadgen.base.json_lines import Lines
from loadgen.base.parsing import MOST_TOKENS
from loadgen.features.data import row_kinds
from loadgen.features.data.row_kinds import RowObject
from loadgen.plan.planned_requests import UNKNOWN_LEN, fingerprint
from loadgen.plan.request_sources import PlanInputs, SourcedRequests
from loadgen.wire.openai import ANSWER_LIMITS, Completions, Dialect

_DECODE = msgspec.json.Decoder(RowObject).decode
_ONE_ANSWER = "one response a request is measured: leave it out, and raise --max-concurrency instead"
# Fields of which only these values leave a request with one answer, streamed, whose tokens are its own.
_ONLY: dict[str, tuple[tuple[bytes, ...], str]] = {
    "n": ((b"1", b"null"), _ONE_ANSWER),
    "best_of": ((b"1", b"null"), _ONE_ANSWER),
    "use_beam_search": ((b"false", b"null"), _ONE_ANSWER),
    "echo": ((b"false", b"null"), "the prompt would be counted as output: leave it out"),
}


class _MessageHead(msgspec.Struct, gc=False):
    role: str


class _MessageContent(msgspec.Struct, gc=False):
    content: msgspec.Raw = msgspec.Raw()


class _Part(msgspec.Struct, gc=False):
    type: str = ""


_CONTENTS = msgspec.json.Decoder(list[_MessageContent]).decode
_PARTS = msgspec.json.Decoder(list[_Part]).decode
_Limit = Annotated[int, msgspec.Meta(ge=1, le=MOST_TOKENS)] | None
_Messages = Annotated[list[_MessageHead], msgspec.Meta(min_length=1)]
_Prompt = (
    Annotated[str, msgspec.Meta(min_length=1)]
    | Annotated[list[Annotated[int, msgspec.Meta(ge=0)]], msgspec.Meta(min_length=1)]
)
# Types of the values that the figures rest on; the others are the server's to judge.
_TYPES: dict[str, Any] = {
    "prompt": _Prompt,
    "messages": _Messages,
    "model": Annotated[str, msgspec.Meta(min_length=1)],
    "stream": bool | None,
    "stream_options": dict[str, Any] | None,
    "tools": list[dict[str, Any]] | None,
    **dict.fromkeys(ANSWER_LIMITS, _Limit),
}

_DECODERS = {key: msgspec.json.Decoder(kind) for key, kind in _TYPES.items()}

# A body with this key, or a part of this type, asks for a feature that not every server has.
_FEATURE_OF_KEY = {
    **dict.fromkeys(("tools", "functions"), "tools"),
    **dict.fromkeys(("response_format",), "response_format"),
    **dict.fromkeys(row_kinds.STRUCTURED_KEYS, "structured outputs"),
    **dict.fromkeys(("logprobs", "top_logprobs", "prompt_logprobs"), "logprobs"),
}
_FEATURE_OF_PART = {"image_url": "images", "input_audio": "audio", "audio_url": "audio", "video_url": "video"}
_IDS = "token ids"
_ANSWERING = frozenset({"assistant", "model"})  # roles of answers
FEATURES = tuple(dict.fromkeys((*_FEATURE_OF_KEY.values(), *_FEATURE_OF_PART.values(), _IDS)))


def find_features(row: Mapping[str, msgspec.Raw]) -> tuple[str, ...]:
    """List the features, names of FEATURES, that a body uses and not every server has."""
    found = [_FEATURE_OF_KEY[key] for key in row if key in _FEATURE_OF_KEY and bytes(row[key]) != b"null"]
    if "messages" in row:
        found += _list_part_features(bytes(row["messages"]))
    elif "prompt" in row and bytes(row["prompt"])[:1] == b"[":
        found.append(_IDS)
    return tuple(dict.fromkeys(found))


class WholeBodies:
    """The request bodies of a file, sent with the keys, values and order that they have there.

    A row's `model` is kept, and the plan's filled in where there is none; `output_len` stands over the row's
    own length where it is given. `features` has, by name, the first request that asks for it; `models` the
    first request of each model that rows name.
    """

    def __init__(self, lines: Lines, kind: str, columns: tuple[Int64, Int64, Int64], output_len: int) -> None:
        self.format = kind
        self._lines = lines
        self._rows, self.input_lens, self.output_lens = columns
        self._output_len = output_len
        self.features: dict[str, int] = {}
        self.models: dict[str, int] = {}

    def request(self, i: int, dialect: Dialect, model: str) -> dict[str, Any]:
        """Return the row, values as JSON bytes, with `model` if it has none, in the form of the API."""
        row: dict[str, Any] = _DECODE(self._lines[int(self._rows[i])])
        row.setdefault("model", model)
        if self._output_len > 0:
            for key in [key for key in ANSWER_LIMITS if key in row] or [dialect.limit_field]:
                row[key] = self._output_len
        return dialect.convert_chat(row) if self.format == row_kinds.CHAT else row

    def name_row(self, i: int) -> str:
        """Name request i by file and line, as `data.jsonl row 17`."""
        return self._lines.name_row(int(self._rows[i]))

    def digest(self) -> str:
        """Return a hash of the file's bytes, of the rows that are sent and their lengths."""
        columns = (self._rows, self.input_lens, self.output_lens)
        return fingerprint(self.format, columns, [self._lines.digest().encode()])


def of_rows(lines: Lines, kind: str, inputs: PlanInputs) -> SourcedRequests:
    """Make the requests of whole bodies; raises UsageError for a bad one, or one of another API.

    Every row is checked, also those that are not sent. Lengths of prompts are known only where they are token
    ids, those of answers where a limit is given.
    """
    rows = row_kinds.order_rows(len(lines), inputs)
    lens = np.full((2, len(lines)), UNKNOWN_LEN, dtype=np.int64)
    asked = inputs.profile.custom_output_len or UNKNOWN_LEN
    first: dict[str, int] = {}
    models: dict[str, int] = {}
    unstreamed = answered = 0
    for i, row in enumerate(row_kinds.read_objects(lines, kind)):
        *lens[:, i], model, last = _check_row(lines, i, row)
        answered += last in _ANSWERING
        row_kinds.name_first(models, model, i)
        unstreamed += bytes(row.get("stream", b"")) == b"false"
        for name in find_features(row):
            first.setdefault(name, i)
    dialect = inputs.dialect
    if kind == row_kinds.CHAT and not dialect.chat:
        raise refuse_api(lines, kind, dialect, "openai-chat")
    if kind == row_kinds.COMPLETIONS and not isinstance(dialect, Completions):
        raise refuse_api(lines, kind, dialect, "openai")
    if asked > 0:
        lens[1] = asked
    input_lens, output_lens = lens[:, rows]
    made = WholeBodies(lines, kind, (rows, input_lens, output_lens), asked)
    made.features = {name: i for name, i in first.items() if i < len(rows)}
    made.models = {name: i for name, i in models.items() if i < len(rows)}
    notes = []
    if unstreamed and inputs.profile.stream:
        notes.append(f"{unstreamed} of the file's bodies have `stream: false`: they are streamed, as all are")
    if made.features:
        notes.append(f"the bodies ask for {', '.join(made.features)}")
    if answered:
        dropped = '.messages |= if .[-1].role == "assistant" then .[:-1] else . end'
        notes.append(
            f"{answered} of {len(lines)} bodies end in an assistant's message, which is sent with the prompt "
            "and which the server continues, answers or refuses; to leave it out: jq -c "
            f"'{dropped}' {shlex.quote(lines.path)} > prompts.jsonl, then --dataset-path prompts.jsonl"
        )
    return SourcedRequests(made, row_kinds.make_facts(kind, lines, rows), notes=tuple(notes))


def refuse_api(lines: Lines, kind: str, dialect: Dialect, backend: str) -> UsageError:
    """Make the error for rows that the run's API does not take, with the backend that does."""
    return lines.file.refusal(f"holds {kind}, and requests go to {dialect.path}: use --backend {backend}")


def _check_row(lines: Lines, i: int, row: RowObject) -> tuple[int, int, str | None, str]:
    """Check a row; return prompt and answer tokens (or UNKNOWN_LEN), model (or None), last role (or "")."""
    values = {
        key: row_kinds.decode_value(lines, i, row, key, _DECODERS[key]) for key in row if key in _DECODERS
    }
    for key in row.keys() & _ONLY.keys():
        allowed, why = _ONLY[key]
        if (given := bytes(row[key])) not in allowed:
            raise lines.refusal(i, f"`{key}` is {given[:40].decode()}: {why}")
    prompt, output_len = values.get("prompt"), UNKNOWN_LEN
    for key in ANSWER_LIMITS[::-1]:  # the first stands where both do
        output_len = values.get(key) or output_len
    prompt_len = len(prompt) if isinstance(prompt, list) else UNKNOWN_LEN
    role = values["messages"][-1].role if "messages" in values else ""
    return prompt_len, output_len, values.get("model"), role


def _list_part_features(messages: bytes) -> list[str]:
    """List the features of the messages' parts, one for each such part; [] if they are of another form."""
    if b'_url"' not in messages and b'_audio"' not in messages:
        return []
    try:
        contents = [bytes(message.content) for message in _CONTENTS(messages)]
        parts = [_PARTS(content) for content in contents if content[:1] == b"["]
    except msgspec.DecodeError:
        return []  # a list of anything else
    types = (part.type for content in parts for part in content)
    return [_FEATURE_OF_PART[kind] for kind in types if kind in _FEATURE_OF_PART]
