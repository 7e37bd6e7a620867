"""Workload: a log as `loadgen data learn` keeps it, as a file and as the trace that it is.

A file of JSON lines, packed by gzip or not. The first row is the head; each further row is a session: `t`,
the seconds from the workload's begin to its own, and its `calls` in the order of their begins. Of a call, `t`
is the seconds after its session's begin, `in` and `out` are tokens, `took` is how long the answer came, in
seconds, and `keep` how many leading blocks it has in common with the call before it, which its `ids` follow:
hashes of whole blocks, equal for equal prompts up to the end of the block. `agent` is an index, 0 for the
main line and i for the one below agent `parents[i - 1]`. `cancelled`: its client went away then.
"""

from __future__ import annotations

from array import array
from typing import Annotated, Any

import msgspec
import numpy as np

from loadgen.base import parsing
from loadgen.base.arrays import Int64
from loadgen.base.clock import SECOND_NS
from loadgen.base.json_lines import Lines, explain_json
from loadgen.base.untrusted import NOT_JSON
from loadgen.features.traces.call_order import SUBAGENT, RecordedCalls
from loadgen.features.traces.trace_rows import NO_SAMPLING, Length, RecordedFields, TraceColumns, TraceRows

VERSION = 1
HEAD_KEY = "workload"  # of the first row alone
_ENDLESS = "the log has no ends of its {:,} calls: a pause between turns includes the first one's response"
_CANCELLED = "{:,} calls were cancelled by their clients"
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=parsing.YEAR_S)]
_Hash = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Index = Annotated[int, msgspec.Meta(ge=0)]


class WorkloadHead(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The first row: what the workload is of, as far as that names nothing of the log."""

    workload: Annotated[int, msgspec.Meta(ge=1, le=VERSION)] = msgspec.field(default=VERSION)
    block_size: Annotated[int, msgspec.Meta(ge=1, le=parsing.MOST_TOKENS)]  # tokens of a block
    source: str  # the form of the log
    sessions: int
    calls: int
    prompts: str  # how their lengths were found
    answers: str
    cancelled: int = 0
    without_end: int = 0  # calls whose end is not in the log
    left_out: dict[str, int] = {}  # rows of the log, by why
    sampled: list[int] = []  # sessions that were kept, and how many the log has
    scale: float = 1.0
    notes: list[str] = []
    fidelity: dict[str, Any] = {}  # how it differs from the log

    def json(self) -> dict[str, Any]:
        """Encode the head as JSON."""
        return {HEAD_KEY: self.workload, **msgspec.to_builtins(self)}


class WorkloadCall(msgspec.Struct, gc=False, omit_defaults=True, rename={"prompt": "in", "answer": "out"}):
    """One request of a session."""

    t: _Seconds
    prompt: Length
    answer: Length
    took: _Seconds | None = None  # None: its end is not in the log
    agent: _Index = 0
    keep: _Index = 0
    ids: list[_Hash] = []
    cancelled: bool = False
    sampling: dict[str, float] | None = None


class WorkloadSession(msgspec.Struct, gc=False, omit_defaults=True):
    """One session."""

    t: _Seconds
    calls: Annotated[list[WorkloadCall], msgspec.Meta(min_length=1)]
    parents: list[_Index] = []


def encode_row(row: WorkloadHead | WorkloadSession) -> bytes:
    """Encode a row as a line of JSON."""
    return msgspec.json.encode(row.json() if isinstance(row, WorkloadHead) else row) + b"\n"


def count_kept(before: Int64, blocks: Int64) -> int:
    """Count the leading blocks that two prompts have in common."""
    if not (shortest := min(len(before), len(blocks))):
        return 0
    differ = np.flatnonzero(before[:shortest] != blocks[:shortest])
    return int(differ[0]) if len(differ) else shortest


def read_workload(lines: Lines) -> TraceRows:
    """Read a workload as the rows of a trace, sorted by time; raises UsageError that names the row."""
    head = read_head(lines)
    columns, fields, i = TraceColumns(), _FieldColumns(), 0
    for i, session in enumerate(lines.decode_rows(WorkloadSession, 1), 1):
        if why := _add_session(columns, session, lines.number(i)):
            raise lines.refusal(i, why)
        fields.add(session)
    if not len(columns):
        raise lines.file.refusal("has no session below its head")
    if i < head.sessions:
        raise lines.file.refusal(f"has {i:,} of the {head.sessions:,} sessions of its head: copy it whole")
    notes = (
        *((_ENDLESS.format(head.without_end),) if head.without_end else ()),
        *((_CANCELLED.format(head.cancelled),) if head.cancelled else ()),
    )
    others = {"file_rows": len(columns), "notes": notes, "recorded": fields.make()}
    return columns.make_sessions(lines, head.block_size, **others)


def read_head(lines: Lines) -> WorkloadHead:
    """Read the head of a workload; raises UsageError for a file that has none, or a newer one."""
    row = lines[0]
    try:
        fields = msgspec.json.decode(row, type=dict[str, Any])
        version = fields.get(HEAD_KEY)
        if isinstance(version, int) and version > VERSION:
            raise lines.refusal(0, f"is of version {version}, and this loadgen reads {VERSION}: update it")
        return msgspec.json.decode(row, type=WorkloadHead)
    except NOT_JSON as error:
        raise lines.refusal(0, f"is no head of a workload: {explain_json(row, error)}") from None


class _FieldColumns:
    def __init__(self) -> None:
        self._samplings: dict[tuple[tuple[str, float], ...], int] = {}
        self._columns = tuple(array("q") for _ in range(3))

    def add(self, session: WorkloadSession) -> None:
        """Add each call's sampling, and when, or after how many tokens, it was cancelled."""
        for call in session.calls:
            pairs = tuple(sorted((call.sampling or {}).items()))
            number = self._samplings.setdefault(pairs, len(self._samplings)) if pairs else NO_SAMPLING
            cancel_ns = tokens = 0
            if call.cancelled and call.took is None:
                tokens = call.answer
            elif call.cancelled:
                cancel_ns = max(round((call.took or 0.0) * SECOND_NS), 1)  # some go away at once
            for column, value in zip(self._columns, (number, cancel_ns, tokens), strict=True):
                column.append(value)

    def make(self) -> RecordedFields | None:
        """Make the fields of all calls; None where none is sampled or cancelled."""
        sampling, cancel_ns, tokens = (np.frombuffer(column, np.int64) for column in self._columns)
        if not (self._samplings or cancel_ns.any() or tokens.any()):
            return None
        return RecordedFields(tuple(map(dict, self._samplings)), sampling, cancel_ns, tokens)


def _add_session(columns: TraceColumns, session: WorkloadSession, number: int) -> str:
    """Add the calls of a session; returns what is wrong with it, "" if nothing is."""
    calls, before, last_s = RecordedCalls(), list[int](), 0.0
    for agent, parent in enumerate(session.parents, 1):
        if parent >= agent:
            return f"agent {agent} is below agent {parent}, which comes after it: its agents go in a circle"
        calls.add_agent(parent, SUBAGENT)
    for i, call in enumerate(session.calls):
        if call.keep > len(before):
            return f"call {i + 1} keeps {call.keep} blocks of {len(before)}: a call before it is missing"
        if call.agent > len(session.parents):
            return f"call {i + 1} is of agent {call.agent}, and there are {len(session.parents)}"
        if call.t < last_s:
            return f"call {i + 1} is before the one above it: sort them by t"
        before, last_s = [*before[: call.keep], *call.ids], call.t
        begin_ns = round(call.t * SECOND_NS)
        end_ns = begin_ns + round((call.took or 0.0) * SECOND_NS)
        calls.add(begin_ns, end_ns, call.agent)
        at_ns = round(session.t * SECOND_NS) + begin_ns
        columns.add(at_ns, (call.prompt, call.answer), number, number, before)
    columns.trees.add(calls)
    return ""
