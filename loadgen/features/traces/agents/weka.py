"""Weka: recorded sessions of coding agents, whose sub-agents' requests lie nested in the agent's.

A row is a session: `id`, `block_size` (64), `hash_id_scope` and `requests`, each with `t` in seconds after
the session's begin, `in`, `out` and the `hash_ids` of whole blocks; one of type `subagent` holds requests of
its own. Their `t` is counted from the session's begin in published AgentX files and from the sub-agent's in
those of kv-cache-tester: if any is earlier than its sub-agent's, the file is of the latter kind. Hashes of
the scope `local`, the default, mean the same content only within their session.

A request ended `api_time` after its `t`, one without it when the next entry of its list began. Times `t` that
are whole seconds in the whole file are taken as rounded down.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec
import numpy as np

from loadgen.base import parsing
from loadgen.base.arrays import Int64
from loadgen.base.clock import SECOND_NS
from loadgen.base.errors import UsageError
from loadgen.base.json_lines import Lines, explain_json
from loadgen.base.text import clean_line
from loadgen.base.untrusted import NOT_JSON
from loadgen.features.traces.call_order import UNKNOWN_NS, RecordedCalls, SessionTrees
from loadgen.features.traces.trace_blocks import scope_hashes
from loadgen.features.traces.trace_rows import Hashes, TraceRows, sort_by_time

_DEFAULT_BLOCK = 64
_MOST_FILE_BYTES = 1 << 30
_AGENT = "subagent"
_MOST_LETTERS = 40  # of a role
_AT_ONCE = "the {} sessions of the trace all begin at once, as in its file"
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=parsing.YEAR_S)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=parsing.MOST_TOKENS)]


class WekaRequest(msgspec.Struct, gc=False, rename={"prompt": "in", "answer": "out"}):
    """A request of an agent, or a sub-agent with requests of its own."""

    t: _Seconds
    type: str = "n"
    prompt: _Count = 0
    answer: _Count = 0
    hash_ids: list[int] | None = None
    api_time: _Seconds | None = None
    think_time: _Seconds | None = None
    requests: list[WekaRequest] | None = None
    subagent_type: str | None = None

    @property
    def is_sent(self) -> bool:
        """Whether it has tokens in prompt and answer."""
        return bool(self.prompt and self.answer)

    @property
    def role(self) -> str:
        """The type of a sub-agent in lower case, as a short line; `subagent` where it is not recorded."""
        return clean_line(self.subagent_type or _AGENT).lower()[:_MOST_LETTERS]


class WekaSession(msgspec.Struct, gc=False):
    """A row: the requests of one agent and its sub-agents."""

    requests: list[WekaRequest]
    block_size: Annotated[int, msgspec.Meta(ge=1, le=parsing.MOST_TOKENS)] = _DEFAULT_BLOCK
    hash_id_scope: str = "local"


class _ListedCall(msgspec.Struct, frozen=True, gc=False):
    """A request, its times in nanoseconds after its session's begin, and its agent."""

    begin_ns: int
    end_ns: int
    agent: int
    request: WekaRequest


class _SentRequest(msgspec.Struct, frozen=True, gc=False):
    number: int  # of the row that it stands in
    scope: int | None  # of its hashes; None: the whole file
    call: _ListedCall


def read_weka(path: str, flag: str) -> TraceRows:
    """Read the requests of a JSONL or JSON file, sorted by time; raises UsageError that names the row.

    All sessions begin at once, as in the file. Requests without tokens in prompt or answer are skipped and
    counted. Raises UsageError for blocks of several sizes, too.
    """
    lines = Lines.open(path, flag)
    sessions = _read_sessions(lines)
    blocks = sorted({session.block_size for _, session in sessions})
    if len(blocks) > 1:
        sizes = ", ".join(map(str, blocks))
        raise lines.file.refusal(f"its sessions have blocks of {sizes} tokens: give a file for each size")
    kept, trees, found = _order_requests(sessions)
    if not kept:
        raise lines.file.refusal("no request has tokens in its prompt and in its answer")
    hashes, starts = _join_hashes(lines, kept)
    waits, delays_ns = trees.make()
    numbers = np.array([sent.number for sent in kept], np.int64)
    left_out = found - len(kept)
    rows = TraceRows(
        np.array([sent.call.begin_ns for sent in kept], np.int64),
        np.array([sent.call.request.prompt for sent in kept], np.int64),
        np.array([sent.call.request.answer for sent in kept], np.int64),
        numbers,
        hashes,
        starts,
        path,
        lines.digest(),
        blocks[0],
        found,
        {"no token in the prompt or in the answer": left_out} if left_out else {},
        timed_notes=(_AT_ONCE.format(len(sessions)),) if len(sessions) > 1 else (),
        sessions=numbers,
        waits=waits,
        delays_ns=delays_ns,
    )
    return sort_by_time(rows)


def _read_sessions(lines: Lines) -> list[tuple[int, WekaSession]]:
    """Return (row, session) pairs of a file: one session per row, or a single JSON text."""
    try:
        msgspec.json.decode(lines[0])
    except NOT_JSON:
        return list(enumerate(_read_whole(lines), 1))
    if lines[0].lstrip().startswith(b"["):
        return list(enumerate(_read_whole(lines), 1))
    return [(lines.number(i), session) for i, session in enumerate(lines.decode_rows(WekaSession))]


def _read_whole(lines: Lines) -> list[WekaSession]:
    """Read the sessions of a file that is one JSON text over many lines; raises UsageError."""
    if lines.file.bytes > _MOST_FILE_BYTES:
        raise lines.file.refusal("is JSON of more than 1 GiB: write a session a line (JSONL)")
    text = b"".join(chunk for _, chunk in lines.file.read_chunks())
    try:
        if text.lstrip().startswith(b"["):
            return msgspec.json.decode(text, type=list[WekaSession])
        return [msgspec.json.decode(text, type=WekaSession)]
    except NOT_JSON as error:
        raise lines.file.refusal(explain_json(text, error)) from None


def _is_before_agent(requests: list[WekaRequest]) -> bool:
    """Whether a sub-agent's request has an earlier time than the sub-agent."""
    agents = [(entry.t, entry.requests) for entry in requests if entry.requests]
    return any(inner.t < t for t, nested in agents for inner in nested) or any(
        _is_before_agent(nested) for _, nested in agents
    )


def _order_requests(
    sessions: list[tuple[int, WekaSession]],
) -> tuple[list[_SentRequest], SessionTrees, int]:
    """Return the requests of all sessions that can be sent, their order, and how many requests there are.

    Those of a session are sorted by their begins.
    """
    relative = any(_is_before_agent(session.requests) for _, session in sessions)
    grid_ns = SECOND_NS if all(_is_whole(session.requests) for _, session in sessions) else 1
    kept: list[_SentRequest] = []
    trees, found = SessionTrees(grid_ns), 0
    for scope, (number, session) in enumerate(sessions):
        shared = session.hash_id_scope == "global"
        calls = RecordedCalls()
        listed = list(_list_calls(session.requests, calls, relative))
        sent = sorted((call for call in listed if call.request.is_sent), key=lambda call: call.begin_ns)
        for call in sent:
            think_s = call.request.think_time
            pause_ns = UNKNOWN_NS if think_s is None else round(think_s * SECOND_NS)
            calls.add(call.begin_ns, call.end_ns, call.agent, pause_ns)
            kept.append(_SentRequest(number, None if shared else scope, call))
        found += len(listed)
        if sent:
            trees.add(calls)
    return kept, trees, found


def _is_whole(requests: list[WekaRequest]) -> bool:
    """Whether the times of all requests, also of sub-agents, are whole seconds."""
    return all(entry.t.is_integer() and _is_whole(entry.requests or []) for entry in requests)


def _list_calls(
    requests: list[WekaRequest], calls: RecordedCalls, relative: bool, agent: int = 0, begin_s: float = 0.0
) -> Iterator[_ListedCall]:
    """Yield an agent's own requests and those of its sub-agents, which are added to `calls`.

    Times count from `begin_s`. With `relative`, a sub-agent's times count from its own begin, else from the
    session's.
    """
    for i, entry in enumerate(requests):
        at_s = begin_s + entry.t
        if entry.requests is not None:
            below = calls.add_agent(agent, entry.role)
            yield from _list_calls(entry.requests, calls, relative, below, at_s if relative else begin_s)
        elif entry.type != _AGENT:
            next_s = begin_s + requests[i + 1].t if i + 1 < len(requests) else at_s
            end_s = next_s if entry.api_time is None else at_s + entry.api_time
            begin_ns, end_ns = round(at_s * SECOND_NS), round(max(at_s, end_s) * SECOND_NS)
            yield _ListedCall(begin_ns, end_ns, agent, entry)


def _join_hashes(lines: Lines, sent: list[_SentRequest]) -> tuple[Hashes, Int64]:
    """Return the hashes of all requests, made different between scopes, and where each request's begin.

    Raises UsageError for a hash of more than 63 bits.
    """
    counts = [len(each.call.request.hash_ids or ()) for each in sent]
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
    hashes = np.empty(int(starts[-1]), np.int64)
    for each, begin, count in zip(sent, starts.tolist(), counts, strict=False):
        try:
            ids = np.array(each.call.request.hash_ids or [], np.int64)
        except OverflowError:
            why = f"{lines.path} row {each.number}: hash_ids holds a number of more than 63 bits"
            raise UsageError(f"{lines.flag} {why}") from None
        hashes[begin : begin + count] = ids if each.scope is None else scope_hashes(ids, each.scope)
    return hashes, starts
