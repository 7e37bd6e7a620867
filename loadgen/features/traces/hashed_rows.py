"""Hashed rows: traces in JSONL with times, lengths and the hashes of each prompt's blocks."""

from __future__ import annotations

from array import array
from typing import Annotated

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.base import bounds
from loadgen.base.arrays import Int64
from loadgen.features.traces.trace_rows import Hashes, HashLists, TraceRows, elapsed_ns
from loadgen.plan.json_lines import Lines

Length = Annotated[int, msgspec.Meta(ge=1, le=bounds.MOST_TOKENS)]
BLOCKS = (16, 64, 512)  # tokens a hash stands for in published traces


class HashedRow(msgspec.Struct, gc=False):
    """A row of Mooncake's, Bailian's and vLLM's timed traces; its time's unit is the format's."""

    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: Length
    output_length: Length
    hash_ids: list[int] | None = None
    # Keys of aiperf's traces that are not read here.
    session_id: msgspec.Raw = msgspec.Raw()
    delay: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()
    text_input: msgspec.Raw = msgspec.Raw()


_SENT_AS = "each request is sent at its own time, and its prompt is made of its lengths and hashes"
_UNREAD = ("session_id", "delay", "messages", "text_input")


def read(lines: Lines, name: str, unit_ns: int, block: int) -> TraceRows:
    """The rows of a file in a format with this name, unit of time and block size; raises UsageError."""
    times, input_lens, output_lens, lists = array("d"), array("q"), array("q"), HashLists()
    unread: dict[str, None] = {}
    for i, row in enumerate(lines.decoded(HashedRow)):
        unread |= dict.fromkeys(key for key in _UNREAD if bytes(getattr(row, key)))
        times.append(row.timestamp)
        input_lens.append(row.input_length)
        output_lens.append(row.output_length)
        try:
            lists.add(row.hash_ids or ())
        except OverflowError:
            raise lines.refusal(i, "hash_ids holds a number of more than 64 bits") from None
    hashes, starts = lists.arrays()
    prompt_lens = np.frombuffer(input_lens, np.int64)
    other = _other_block(prompt_lens, np.diff(starts), block)
    if other:
        raise lines.file.refusal(
            f"each row has one of hash_ids for {other} tokens, and {name} one for {block}: "
            "give the --trace-format that it is in"
        )
    at_ns = elapsed_ns(np.frombuffer(times, np.float64), unit_ns, lines.refusal)
    lens = prompt_lens, np.frombuffer(output_lens, np.int64)
    rows = of_lines(lines, at_ns, lens, (hashes, starts), block)
    if not unread:
        return rows
    listed = ", ".join(f"`{key}`" for key in unread)
    return replace(rows, notes=(f"{listed} of the rows are not read: {_SENT_AS}",))


def of_lines(
    lines: Lines, at_ns: Int64, lens: tuple[Int64, Int64], blocks: tuple[Hashes, Int64], block: int
) -> TraceRows:
    """Every row of a file: its time, the lengths of prompt and answer, its hashes and where they begin."""
    numbers = np.array([lines.number(i) for i in range(len(lines))], np.int64)
    return TraceRows(at_ns, *lens, numbers, *blocks, lines.path, lines.digest(), block, len(lines))


def covers(input_lens: Int64, hash_counts: Int64, block: int) -> bool:
    """Whether rows have exactly the hashes that blocks of `block` tokens need, and some more than one."""
    return bool((hash_counts == -(-input_lens // block)).all() and (hash_counts > 1).any())


def _other_block(input_lens: Int64, hash_counts: Int64, block: int) -> int:
    """The block size that every row proves, where it is not `block`; else 0."""
    if covers(input_lens, hash_counts, block):
        return 0
    return next((size for size in BLOCKS if covers(input_lens, hash_counts, size)), 0)
