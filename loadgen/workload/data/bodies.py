"""Bodies: whole chat and completion requests, sent as they stand in the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import msgspec
import numpy as np

from loadgen.arrays import Int64
from loadgen.errors import UsageError
from loadgen.protocol.openai import Chat, Completions, Dialect
from loadgen.workload.bounds import MOST_TOKENS
from loadgen.workload.data import kinds, sent_rows
from loadgen.workload.data.kinds import RowObject
from loadgen.workload.data.lines import Lines
from loadgen.workload.plan_inputs import PlanInputs, SourcedRequests
from loadgen.workload.requests import UNKNOWN_LEN, fingerprint

LIMITS = ("max_completion_tokens", "max_tokens")  # each is the length of the answer, where it is there
_DECODE = msgspec.json.Decoder(RowObject).decode
_NULLS = (b"null",)
_ONE_ANSWER = "one answer a request is measured: leave it out, and raise --max-concurrency instead"
# Fields of which only these values leave a request with one answer, streamed, whose tokens are its own.
_ONLY: dict[str, tuple[tuple[bytes, ...], str]] = {
    "n": ((b"1", b"null"), _ONE_ANSWER),
    "best_of": ((b"1", b"null"), _ONE_ANSWER),
    "use_beam_search": ((b"false", b"null"), _ONE_ANSWER),
    "echo": ((b"false", b"null"), "the prompt would be counted as the answer: leave it out"),
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
    "messages": _Messages,
    "model": Annotated[str, msgspec.Meta(min_length=1)],
    "stream": bool | None,
    "stream_options": dict[str, Any] | None,
    "tools": list[dict[str, Any]] | None,
    **dict.fromkeys(LIMITS, _Limit),
}

# What a body asks of a server that not every server has: by the feature's name, whether a row has it.
FEATURES: dict[str, Callable[[Mapping[str, msgspec.Raw]], bool]] = {
    "tools": lambda row: _holds(row, "tools", "functions"),
    "response_format": lambda row: _holds(row, "response_format"),
    "structured outputs": lambda row: any(
        key.startswith(("guided_", "structured_outputs")) and _holds(row, key) for key in row
    ),
    "images": lambda row: _has_part(row, "image_url"),
    "audio": lambda row: _has_part(row, "input_audio", "audio_url"),
    "video": lambda row: _has_part(row, "video_url"),
    "token ids": lambda row: bytes(row.get("prompt", b""))[:1] == b"[",
    "logprobs": lambda row: _holds(row, "logprobs", "top_logprobs", "prompt_logprobs"),
}


def features(row: Mapping[str, msgspec.Raw]) -> tuple[str, ...]:
    """What a body asks of a server that not every server has: names of FEATURES."""
    return tuple(name for name, has in FEATURES.items() if has(row))


class WholeBodies:
    """Bodies of a file, keys and values with the bytes and in the order that they have there.

    A row's `model` is kept, and the plan's filled in where there is none; `output_len` stands over the row's
    own length where it is given. `features` has, by name, the first request that asks for it.
    """

    def __init__(self, lines: Lines, kind: str, columns: tuple[Int64, Int64, Int64], output_len: int) -> None:
        self.format = kind
        self._lines = lines
        self._rows, self.input_lens, self.output_lens = columns
        self._output_len = output_len
        self.features: dict[str, int] = {}

    def request(self, i: int, dialect: Dialect, model: str) -> dict[str, Any]:
        """The row's keys, each value as its bytes."""
        row: dict[str, Any] = _DECODE(self._lines[int(self._rows[i])])
        row.setdefault("model", model)
        if self._output_len > 0:
            fallback = getattr(dialect, "limit_field", LIMITS[1])
            for key in [key for key in LIMITS if key in row] or [fallback]:
                row[key] = self._output_len
        return row

    def where(self, i: int) -> str:
        """Request i by file and line, as `data.jsonl row 17`."""
        return self._lines.where(int(self._rows[i]))

    def digest(self) -> str:
        """A fingerprint of the file's bytes, of the rows that are sent and their lengths."""
        columns = (self._rows, self.input_lens, self.output_lens)
        return fingerprint(self.format, columns, [self._lines.digest().encode()])


def of_rows(lines: Lines, kind: str, inputs: PlanInputs) -> SourcedRequests:
    """The requests of whole bodies; raises UsageError of one that is not, or that the run's API cannot take.

    Lengths of prompts are known only where they are token ids.
    """
    _fits(lines, kind, inputs.dialect)
    rows = sent_rows.order(len(lines), inputs)
    lens = np.full((2, len(lines)), UNKNOWN_LEN, dtype=np.int64)
    asked = inputs.profile.custom_output_len or UNKNOWN_LEN
    first: dict[str, int] = {}
    unstreamed = 0
    for i, row in enumerate(kinds.objects(lines, kind)):
        lens[:, i] = _checked(lines, i, row)
        unstreamed += bytes(row.get("stream", b"")) == b"false"
        for name in features(row):
            first.setdefault(name, i)
    if asked > 0:
        lens[1] = asked
    input_lens, output_lens = lens[:, rows]
    made = WholeBodies(lines, kind, (rows, input_lens, output_lens), asked)
    made.features = {name: i for name, i in first.items() if i < len(rows)}
    return SourcedRequests(
        made,
        sent_rows.facts(kind, lines, rows),
        notes=tuple(_notes(made.features, unstreamed, inputs.profile.stream)),
    )


def _fits(lines: Lines, kind: str, dialect: Dialect) -> None:
    """Raises UsageError where the run's API is not that of the bodies."""
    if kind == kinds.CHAT and not isinstance(dialect, Chat):
        raise lines.file.refusal(
            f"holds {kind}, and requests go to {dialect.path}: use --backend openai-chat"
        )
    if kind == kinds.COMPLETIONS and not isinstance(dialect, Completions):
        raise other_api(lines, kind, dialect, "openai")


def other_api(lines: Lines, kind: str, dialect: Dialect, backend: str) -> UsageError:
    """The error of rows that the API of the run does not take."""
    return lines.file.refusal(f"holds {kind}, and requests go to {dialect.path}: use --backend {backend}")


def _checked(lines: Lines, i: int, row: RowObject) -> tuple[int, int]:
    """Tokens of a row's prompt and answer; raises UsageError of what makes figures untrue, or no request."""
    values = {key: kinds.value(lines, i, row, key, kind) for key, kind in _TYPES.items() if key in row}
    for key, (allowed, why) in _ONLY.items():
        if key in row and (given := bytes(row[key])) not in allowed:
            raise lines.refusal(i, f"`{key}` is {given[:40].decode()}: {why}")
    prompt = kinds.value(lines, i, row, "prompt", _Prompt) if "prompt" in row else ""
    limits = (values.get(key) for key in LIMITS)
    output_len = next((limit for limit in limits if limit is not None), UNKNOWN_LEN)
    return len(prompt) if isinstance(prompt, list) else UNKNOWN_LEN, output_len


def _notes(found: Mapping[str, int], unstreamed: int, streams: bool) -> Iterator[str]:
    if unstreamed and streams:
        yield f"{unstreamed} of the file's bodies have `stream: false`: they are streamed, as all are"
    if found:
        yield f"the bodies ask for {', '.join(found)}"


def _holds(row: Mapping[str, msgspec.Raw], *keys: str) -> bool:
    """Whether a row has one of these keys with a value that is not null."""
    return any(key in row and bytes(row[key]) not in _NULLS for key in keys)


def _has_part(row: Mapping[str, msgspec.Raw], *types: str) -> bool:
    """Whether a message of a row has a part of one of these types."""
    raw = bytes(row.get("messages", b""))
    if not any(f'"{kind}"'.encode() in raw for kind in types):
        return False
    try:
        contents = [
            bytes(message.content) for message in msgspec.json.decode(raw, type=list[_MessageContent])
        ]
        parts = [
            msgspec.json.decode(content, type=list[_Part]) for content in contents if content[:1] == b"["
        ]
    except msgspec.DecodeError:
        return False  # a list of anything else
    return any(part.type in types for content in parts for part in content)
