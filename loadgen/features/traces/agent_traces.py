"""Agent traces: recorded sessions of coding agents, whose requests wait for answers.

Weka: a row is a session, in which sub-agents' requests lie nested in the agent's: `id`, `block_size` (64),
`hash_id_scope` and `requests`, each with `t` in seconds after the session's begin, `in`, `out` and the
`hash_ids` of whole blocks; one of type `subagent` holds requests of its own. Their `t` is counted from the
session's begin in published AgentX files and from the sub-agent's in those of kv-cache-tester: if any is
earlier than its sub-agent's, the file is of the latter kind. Hashes of the scope `local`, the default, mean
the same content only within their session. A request ended `api_time` after its `t`, one without it when the
next entry of its list began. Times `t` that are whole seconds in the whole file are taken as rounded down.

TraceLab: a row of JSON is a round of a session: `session_id`, `round_index`, `prefix_tokens` (cached by the
provider), `newly_append_tokens`, `output_tokens`, `timing_events` and `tools`. A round begins with the last
user's message or tool's result before its first output, and ends with its last output. The rounds of a
session wait for one another. The canonical CSV of the project has `id`, `round_idx`, `prefix_len`,
`input_len` (appended), `output_len`, `arrival_time` of the session and `tool_wait_after_ms`, both in
milliseconds, and no other times.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import Annotated

import msgspec
import numpy as np

from loadgen.base import parsing
from loadgen.base.clock import MS_NS, SECOND_NS
from loadgen.base.json_lines import Lines
from loadgen.base.parsing import parse_instant_ns
from loadgen.base.text import quote_value
from loadgen.features.traces import trace_rows
from loadgen.features.traces.call_order import MOST_DEPTH, UNKNOWN_NS, RecordedCalls, name_role
from loadgen.features.traces.trace_blocks import scope_hashes
from loadgen.features.traces.trace_rows import (
    TraceColumns,
    TraceRows,
    find_growth,
    parse_length,
    parse_number,
)
from loadgen.plan.trace_heads import TRACELAB_COLUMNS

_DEFAULT_BLOCK = 64
_AGENT = "subagent"
_LOCAL, _GLOBAL = "local", "global"  # what equal hashes are equal in
_AT_ONCE = "the {} sessions of the trace all begin at once, as in its file"
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=parsing.YEAR_S)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=parsing.MOST_TOKENS)]
_INPUTS = ("user_message", "tool_result")
_UNTIMED = "a row has no time of its own: requests follow the session's arrival by the waits for tools alone"
_NO_TOKEN = "no token in the prompt or in the output"


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


class WekaSession(msgspec.Struct, gc=False):
    """A row: the requests of one agent and its sub-agents."""

    requests: list[WekaRequest]
    id: str | int | None = None
    block_size: Annotated[int, msgspec.Meta(ge=1, le=parsing.MOST_TOKENS)] = _DEFAULT_BLOCK
    hash_id_scope: str = _LOCAL


def read_weka(lines: Lines) -> TraceRows:
    """Read the requests of sessions, one a row, sorted by time; raises UsageError that names the row.

    All sessions begin at once, as in the file. Requests without tokens in prompt or answer are skipped and
    counted. Raises UsageError for blocks of several sizes, too.
    """
    ids, blocks, found = set[str | int | None](), set[int](), 0
    is_relative, is_whole = False, True  # a sub-agent's times count from its own begin; all are whole seconds
    for i, session in enumerate(lines.decode_rows(WekaSession)):
        if session.hash_id_scope not in (_LOCAL, _GLOBAL):
            scope = quote_value(session.hash_id_scope)
            raise lines.refusal(i, f"hash_id_scope {scope} is neither {_LOCAL} nor {_GLOBAL}")
        if session.id is not None and session.id in ids:
            named = quote_value(session.id)
            raise lines.refusal(i, f"id {named} is that of an earlier session: leave one of them out")
        ids.add(session.id)
        blocks.add(session.block_size)
        level, depth = [(entry, 0.0) for entry in session.requests], 0
        while level:
            if depth == MOST_DEPTH:
                raise lines.refusal(i, f"its sub-agents are nested more than {MOST_DEPTH} deep")
            is_whole = is_whole and all(entry.t.is_integer() for entry, _ in level)
            is_relative = is_relative or any(entry.t < begin_s for entry, begin_s in level)
            level = [(inner, entry.t) for entry, _ in level for inner in entry.requests or ()]
            depth += 1
    if len(blocks) > 1:
        sizes = ", ".join(map(str, sorted(blocks)))
        raise lines.file.refusal(f"its sessions have blocks of {sizes} tokens: give a file for each size")
    columns = TraceColumns(SECOND_NS if is_whole else 1)
    for i, session in enumerate(lines.decode_rows(WekaSession)):
        try:
            found += _add_session(columns, lines.number(i), i, session, is_relative)
        except OverflowError:
            raise lines.refusal(i, "hash_ids holds a number of more than 63 bits") from None
    if not len(columns):
        raise lines.file.refusal("no request has tokens in its prompt and in its output")
    left_out = found - len(columns)
    return columns.make_sessions(
        lines,
        blocks.pop(),
        file_rows=found,
        skipped={_NO_TOKEN: left_out} if left_out else {},
        timed_notes=(_AT_ONCE.format(len(lines)),) if len(lines) > 1 else (),
    )


def _add_session(columns: TraceColumns, number: int, scope: int, session: WekaSession, relative: bool) -> int:
    """Add a session's requests that have tokens in prompt and answer; return how many it has in all."""
    calls = RecordedCalls()
    listed = list(_list_calls(session.requests, calls, relative))
    sent = sorted((call for call in listed if call[3].prompt and call[3].answer), key=itemgetter(0))
    for begin_ns, end_ns, agent, request in sent:
        pause_ns = UNKNOWN_NS if request.think_time is None else round(request.think_time * SECOND_NS)
        calls.add(begin_ns, end_ns, agent, pause_ns)
        ids = np.array(request.hash_ids or [], np.int64)
        hashes = (ids if session.hash_id_scope == _GLOBAL else scope_hashes(ids, scope)).tolist()
        columns.add(begin_ns, (request.prompt, request.answer), number, number, hashes)
    if sent:
        columns.trees.add(calls)
    return len(listed)


def _list_calls(
    requests: list[WekaRequest], calls: RecordedCalls, relative: bool, agent: int = 0, begin_s: float = 0.0
) -> Iterator[tuple[int, int, int, WekaRequest]]:
    """Yield (begin ns, end ns, agent, request) of an agent and its sub-agents; adds these to `calls`."""
    for i, entry in enumerate(requests):
        at_s = begin_s + entry.t
        if entry.requests is not None:
            below = calls.add_agent(agent, name_role(entry.subagent_type))
            yield from _list_calls(entry.requests, calls, relative, below, at_s if relative else begin_s)
        elif entry.type != _AGENT:
            next_s = begin_s + requests[i + 1].t if i + 1 < len(requests) else at_s
            end_s = next_s if entry.api_time is None else at_s + entry.api_time
            begin_ns, end_ns = round(at_s * SECOND_NS), round(max(at_s, end_s) * SECOND_NS)
            yield begin_ns, end_ns, agent, entry


class TimingEvent(msgspec.Struct, gc=False):
    """Something that was observed of a round, and when."""

    event_type: str
    timestamp: str


class ToolCall(msgspec.Struct, gc=False):
    """A call of a tool: when the model asked for it, and when its result was there."""

    emitted_at: str | None = None
    result_at: str | None = None


class RoundRow(msgspec.Struct, gc=False):
    """A row of JSON: one request of a session."""

    session_id: str
    round_index: Annotated[int, msgspec.Meta(ge=0)]
    prefix_tokens: _Count
    newly_append_tokens: _Count
    output_tokens: _Count
    provider: str = ""
    model: str | None = None
    project: str | None = None  # with the file, of sessions whose ids are alike
    session_file: str | None = None
    timing_events: list[TimingEvent] = []
    tools: list[ToolCall] = []

    def find_times_ns(self) -> tuple[int, int]:
        """Return begin and end; raises ValueError without events, or for an output before the input."""
        if not self.timing_events:
            raise ValueError("has no timing_events: give the project's CSV, which needs none")
        times_ns = [
            _read_instant_ns(f"timing_events[{place}].timestamp", event.timestamp)
            for place, event in enumerate(self.timing_events)
        ]
        outputs = [at for at, event in enumerate(self.timing_events) if event.event_type not in _INPUTS]
        begin_ns = max(times_ns[: outputs[0] if outputs else None], default=times_ns[0])
        for place in outputs:
            if (early_ns := begin_ns - times_ns[place]) > 0:
                early_s = early_ns / SECOND_NS
                raise ValueError(
                    f"timing_events[{place}], an output, is {early_s:g} s before the round's input"
                )
        return begin_ns, max((times_ns[place] for place in outputs), default=begin_ns)

    def list_tools_ns(self) -> list[tuple[int, int]]:
        """List when each tool was asked for and its result was there; raises ValueError if before that."""
        found = list[tuple[int, int]]()
        for place, tool in enumerate(self.tools):
            if not (tool.emitted_at and tool.result_at):
                continue
            asked_ns = _read_instant_ns(f"tools[{place}].emitted_at", tool.emitted_at)
            found.append((asked_ns, _read_instant_ns(f"tools[{place}].result_at", tool.result_at)))
            if (early_ns := asked_ns - found[-1][1]) > 0:
                early_s = early_ns / SECOND_NS
                raise ValueError(f"tools[{place}].result_at is {early_s:g} s before its emitted_at")
        return found


def _read_instant_ns(name: str, text: str) -> int:
    try:
        return parse_instant_ns(text)
    except ValueError as error:
        raise ValueError(f"{name} {error}") from None


class _Round(msgspec.Struct, gc=False):
    """A round with its times in nanoseconds; those of a CSV begin with their session."""

    number: int  # of its row
    index: int
    kept: int
    input_len: int
    output_len: int
    shared: tuple[str, str]  # of which sessions may begin alike
    begin_ns: int
    end_ns: int
    tools_ns: list[tuple[int, int]]  # from the request for a tool to its result
    wait_after_ns: int = UNKNOWN_NS  # for its tools, where that is all that is recorded


def read_tracelab(lines: Lines) -> TraceRows:
    """Read the rounds of rows of JSON or of a CSV, sorted by time.

    Raises UsageError that names the row. Rounds without tokens in prompt or answer are skipped and counted.
    """
    sheet = not lines[0].lstrip().startswith(b"{")
    sessions: dict[str, list[_Round]] = {}
    found = 0
    for name, made in _read_sheet(lines) if sheet else _read_json(lines):
        found += 1
        sessions.setdefault(name, []).append(made)
    columns, prompts = TraceColumns(), list[tuple[int, int, int, tuple[str, str]]]()
    for number, rounds in enumerate(sessions.values()):
        rounds.sort(key=lambda each: each.index)
        kept = [each for each in rounds if each.input_len and each.output_len]
        if not kept:
            continue
        calls = _order_rounds(kept)
        columns.trees.add(calls)
        for each, begin_ns in zip(kept, calls.begins_ns, strict=True):
            prompts.append((number, each.input_len, each.kept, each.shared))
            lens = (each.input_len, each.output_len)
            columns.add(kept[0].begin_ns + begin_ns, lens, each.number, number)
    if not len(columns):
        raise lines.file.refusal("no round has tokens in its prompt and in its output")
    return columns.make_sessions(
        lines,
        file_rows=found,
        skipped={_NO_TOKEN: found - len(columns)} if found > len(columns) else {},
        timed_notes=(_UNTIMED,) if sheet else (),
        growth=find_growth(prompts),
    )


def _order_rounds(rounds: list[_Round]) -> RecordedCalls:
    """Return a session's calls, each after the end of the one before it, with the times of its tools."""
    calls, begun_ns = RecordedCalls(), rounds[0].begin_ns
    tools_ns = calls.tools_ns.setdefault(0, [])
    end_ns, wait_ns = 0, UNKNOWN_NS
    for each in rounds:
        begin_ns = max(each.begin_ns - begun_ns, end_ns)
        if wait_ns != UNKNOWN_NS:
            begin_ns = end_ns + wait_ns
            tools_ns.append((end_ns, begin_ns))
        calls.add(begin_ns, each.end_ns - begun_ns)
        end_ns, wait_ns = calls.ends_ns[-1], each.wait_after_ns
        tools_ns += [(begin - begun_ns, end - begun_ns) for begin, end in each.tools_ns]
    return calls


def _read_json(lines: Lines) -> Iterator[tuple[str, _Round]]:
    """Yield (session's key, round) of each JSON row; raises UsageError that names the row."""
    for i, row in enumerate(lines.decode_rows(RoundRow)):
        lens = row.prefix_tokens, row.prefix_tokens + row.newly_append_tokens, row.output_tokens
        shared = row.provider, row.model or ""
        try:
            times_ns, tools_ns = row.find_times_ns(), row.list_tools_ns()
        except ValueError as error:
            raise lines.refusal(i, f"{error}") from None
        made = _Round(lines.number(i), row.round_index, *lens, shared, *times_ns, tools_ns)
        yield "\0".join((row.session_id, row.project or "", row.session_file or "")), made


def _read_sheet(lines: Lines) -> Iterator[tuple[str, _Round]]:
    """Yield (session's id, round) of each row of the canonical CSV; raises UsageError that names the row."""
    for i, (name, *texts) in trace_rows.read_sheet(lines, TRACELAB_COLUMNS, "tracelab"):
        named = list(zip(texts, TRACELAB_COLUMNS[1:], strict=True))
        try:
            index, kept, appended, answer = (parse_length(*each) for each in named[:4])
            arrival, wait = (round(parse_number(*each, parsing.YEAR_S * 1000) * MS_NS) for each in named[4:])
        except ValueError as error:
            raise lines.refusal(i, f"{error}") from None
        tokens = (index, kept, kept + appended, answer)
        yield name, _Round(lines.number(i), *tokens, ("", ""), arrival, arrival, [], wait)
