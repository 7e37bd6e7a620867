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
from loadgen.base.clock import SECOND_NS
from loadgen.base.json_lines import Lines
from loadgen.base.text import quote_value
from loadgen.features.traces.call_order import MOST_DEPTH, UNKNOWN_NS, RecordedCalls, name_role
from loadgen.features.traces.trace_blocks import scope_hashes
from loadgen.features.traces.trace_rows import SessionColumns, TraceRows

_DEFAULT_BLOCK = 64
_AGENT = "subagent"
_LOCAL, _GLOBAL = "local", "global"  # what equal hashes are equal in
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


class WekaSession(msgspec.Struct, gc=False):
    """A row: the requests of one agent and its sub-agents."""

    requests: list[WekaRequest]
    id: str | int | None = None
    block_size: Annotated[int, msgspec.Meta(ge=1, le=parsing.MOST_TOKENS)] = _DEFAULT_BLOCK
    hash_id_scope: str = _LOCAL


class _ListedCall(msgspec.Struct, frozen=True, gc=False):
    """A request, its times in nanoseconds after its session's begin, and its agent."""

    begin_ns: int
    end_ns: int
    agent: int
    request: WekaRequest


class _FileFacts(msgspec.Struct):
    """What holds of a whole file, found before its requests are read."""

    sessions: int = 0
    blocks: set[int] = set()
    ids: set[str | int | None] = set()
    relative: bool = False  # a sub-agent's times count from its own begin
    whole: bool = True  # all times are whole seconds

    def add(self, session: WekaSession) -> None:
        """Add a session; raises ValueError for an unknown scope, an id again, or agents nested too deep."""
        self.sessions += 1
        if session.hash_id_scope not in (_LOCAL, _GLOBAL):
            raise ValueError(
                f"hash_id_scope {quote_value(session.hash_id_scope)} is neither {_LOCAL} nor {_GLOBAL}"
            )
        if session.id is not None and session.id in self.ids:
            raise ValueError(
                f"id {quote_value(session.id)} is that of an earlier session: leave one of them out"
            )
        self.ids.add(session.id)
        self.blocks.add(session.block_size)
        level = [(entry, 0.0) for entry in session.requests]
        for _ in range(MOST_DEPTH):
            self.whole = self.whole and all(entry.t.is_integer() for entry, _ in level)
            self.relative = self.relative or any(entry.t < begin_s for entry, begin_s in level)
            level = [(inner, entry.t) for entry, _ in level for inner in entry.requests or ()]
            if not level:
                return
        raise ValueError(f"its sub-agents are nested more than {MOST_DEPTH} deep")


class _Columns(SessionColumns):
    """The requests of a file that can be sent, and how many there are in all."""

    found = 0

    def add_session(self, number: int, scope: int | None, session: WekaSession, relative: bool) -> None:
        """Add a session, of a row of this number, whose hashes are its own unless the scope is None.

        Raises OverflowError for a hash of more than 63 bits.
        """
        calls = RecordedCalls()
        listed = list(_list_calls(session.requests, calls, relative))
        self.found += len(listed)
        sent = sorted((call for call in listed if call.request.is_sent), key=lambda call: call.begin_ns)
        for call in sent:
            request = call.request
            pause_ns = UNKNOWN_NS if request.think_time is None else round(request.think_time * SECOND_NS)
            calls.add(call.begin_ns, call.end_ns, call.agent, pause_ns)
            ids = np.array(request.hash_ids or [], np.int64)
            hashes = (ids if scope is None else scope_hashes(ids, scope)).tolist()
            self.add(call.begin_ns, (request.prompt, request.answer), number, number, hashes)
        if sent:
            self.trees.add(calls)


def read_weka(lines: Lines) -> TraceRows:
    """Read the requests of sessions, one a row, sorted by time; raises UsageError that names the row.

    All sessions begin at once, as in the file. Requests without tokens in prompt or answer are skipped and
    counted. Raises UsageError for blocks of several sizes, too.
    """
    facts = _find_facts(lines)
    columns = _Columns(SECOND_NS if facts.whole else 1)
    for i, session in enumerate(lines.decode_rows(WekaSession)):
        scope = None if session.hash_id_scope == _GLOBAL else i
        try:
            columns.add_session(lines.number(i), scope, session, facts.relative)
        except OverflowError:
            raise lines.refusal(i, "hash_ids holds a number of more than 63 bits") from None
    if not len(columns):
        raise lines.file.refusal("no request has tokens in its prompt and in its answer")
    left_out = columns.found - len(columns)
    return columns.make(
        lines,
        facts.blocks.pop(),
        file_rows=columns.found,
        skipped={"no token in the prompt or in the answer": left_out} if left_out else {},
        timed_notes=(_AT_ONCE.format(facts.sessions),) if facts.sessions > 1 else (),
    )


def _find_facts(lines: Lines) -> _FileFacts:
    """Find what holds of all sessions; raises UsageError for what `add` refuses, or blocks of two sizes."""
    facts = _FileFacts()
    for i, session in enumerate(lines.decode_rows(WekaSession)):
        try:
            facts.add(session)
        except ValueError as error:
            raise lines.refusal(i, f"{error}") from None
    if len(facts.blocks) > 1:
        sizes = ", ".join(map(str, sorted(facts.blocks)))
        raise lines.file.refusal(f"its sessions have blocks of {sizes} tokens: give a file for each size")
    return facts


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
            below = calls.add_agent(agent, name_role(entry.subagent_type))
            yield from _list_calls(entry.requests, calls, relative, below, at_s if relative else begin_s)
        elif entry.type != _AGENT:
            next_s = begin_s + requests[i + 1].t if i + 1 < len(requests) else at_s
            end_s = next_s if entry.api_time is None else at_s + entry.api_time
            begin_ns, end_ns = round(at_s * SECOND_NS), round(max(at_s, end_s) * SECOND_NS)
            yield _ListedCall(begin_ns, end_ns, agent, entry)
