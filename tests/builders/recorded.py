"""Recorded responses of real servers (`tests/data/responses`) as the reads of a socket, and as captures.

`python tests/builders/recorded.py` stores again in tests/features/recorded_answers.json what is read of those
in the APIs next to chat: look at what has changed.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.features.apis.generate_api import Generate
from loadgen.features.apis.messages_api import Messages
from loadgen.features.apis.responses_api import Responses
from loadgen.records.decode import Decoder
from loadgen.records.record import UNKNOWN, Record
from loadgen.transport.capture import Capture, join_reads
from loadgen.transport.failure import Failure, FailureKind
from loadgen.wire.openai import DIALECTS, Dialect

APIS: dict[str, Dialect] = {
    **DIALECTS, "generate": Generate(), "responses": Responses(), "messages": Messages(),
}  # fmt: skip
RESPONSES = Path(__file__).parents[1] / "data" / "responses"
OFFSET_NS = 1_000_000_000_000  # CLOCK_REALTIME minus CLOCK_MONOTONIC of every capture made here
STORED = Path(__file__).parents[1] / "features" / "recorded_answers.json"
_OF_READS = ("index", "slot", "intended_ns", "sent_ns", "end_ns", "reads", "lag_sum_ns", "lag_max_ns")
LAG_NS = 250  # by which every user-space stamp is late
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
EVENT = re.compile(rb".*?\n\n", re.DOTALL)
TIMED = re.compile(r" *([\d.]+) ms len= *\d+ (b['\"].*)")


def chunk(data: bytes) -> bytes:
    """A chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def reads(name: str) -> list[bytes]:
    """A recorded answer: its head, each event in a chunk and a read of its own, and its end."""
    head = (RESPONSES / f"{name}.headers").read_bytes().rstrip()
    body = (RESPONSES / f"{name}.txt").read_bytes()
    if b"chunked" not in head:  # some paths in the bodies were shortened after recording
        head = re.sub(rb"content-length: \d+", b"content-length: %d" % len(body), head)
        return [head + b"\r\n\r\n", body]
    return [head + b"\r\n\r\n", *(chunk(event) for event in EVENT.findall(body)), b"0\r\n\r\n"]


def timed(name: str) -> tuple[list[int], list[bytes]]:
    """A recorded answer as it came: when each read was made (ns), and its bytes."""
    at_ns, data = [], []
    for line in (RESPONSES / f"{name}.timed").read_text().splitlines():
        match = TIMED.fullmatch(line)
        if match and match[2] != "b'<EOF>'":
            at_ns.append(round(float(match[1]) * 1e6))
            data.append(ast.literal_eval(match[2]))
    return at_ns, data


def capture(
    data: Sequence[bytes], at_ns: Sequence[int] | None = None, failure: Failure | None = None, status: int = 0
) -> Capture:
    """A capture of these reads at these times (read i at i + 1 µs by default); unframed with a status."""
    arrived = np.array(at_ns if at_ns is not None else [1000 * (i + 1) for i in range(len(data))], np.int64)
    kernel = np.stack(np.divmod(arrived + OFFSET_NS, 1_000_000_000), axis=1)
    raw, read_lengths = join_reads(data)
    return Capture(
        index=3, slot=1, intended_ns=1, sent_ns=2, end_ns=10**15, framed=status == 0, status=status,
        failure=failure, raw=raw, read_lengths=read_lengths, seen_ns=(arrived + LAG_NS).tobytes(),
        kernel=kernel.astype(np.int64).tobytes(), realtime_offset_ns=OFFSET_NS,
    )  # fmt: skip


def decode(name: str, data: list[bytes], at_ns: list[int] | None = None, **more: Any) -> Record:
    """The Record of these reads; the name says which API, and whether it was streamed."""
    keep_text = more.pop("keep_text", False)
    decoder = Decoder(_dialect(name), streamed="nostream" not in name, keep_text=keep_text)
    return decoder.decode(capture(data, at_ns, **more))


def decode_events(api: str, events: Iterable[bytes]) -> Record:
    """The Record of a stream of these events, with its text, each in a chunk and a read of its own."""
    return decode(api, [STREAM_HEAD, *map(chunk, events), b"0\r\n\r\n"], keep_text=True)


def describe(name: str) -> dict[str, Any]:
    """What is read of a recorded answer, without the times of its reads and what it lacks."""
    record = decode(name, reads(name), keep_text=True)
    found = {key: value for key, value in values(record).items() if key not in _OF_READS}
    if record.failure is not None:
        found["failure"] = [record.failure.kind.value, record.failure.detail]
    return {key: value for key, value in found.items() if value not in (UNKNOWN, None, [], "", 0)}


def values(record: Record) -> dict[str, Any]:
    """A record's fields, so that two records can be compared."""
    fields = {name: getattr(record, name) for name in Record.__struct_fields__}
    return {name: v.tolist() if isinstance(v, np.ndarray) else v for name, v in fields.items()}


def _dialect(name: str) -> Dialect:
    return APIS[api_of(name)]


def api_of(name: str) -> str:
    """The API of a recorded answer, by its name."""
    return next((api for api in APIS if api in name), "completions")


def outcome(record: Record) -> tuple[FailureKind | None, str, int, int, bool]:
    """Failure, finish reason, input and output tokens, whether each message's tokens are known."""
    kind = record.failure.kind if record.failure else None
    return kind, record.finish_reason, record.input_tokens, record.output_tokens, record.exact_tokens


def main() -> None:
    """Store what is read of each answer again."""
    paths = sorted(path.relative_to(RESPONSES).with_suffix("") for path in RESPONSES.rglob("*.txt"))
    names = [name for name in map(str, paths) if api_of(name) in ("generate", "responses", "messages")]
    lines = (f"{json.dumps(name)}: {json.dumps(describe(name), ensure_ascii=False)}" for name in names)
    STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    main()
