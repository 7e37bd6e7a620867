"""OTel sessions: a file of spans as a trace: calls of models, their agents, and the tools between them.

A session is a conversation, where the spans name one, else a trace. Only leaves count: a span that counts
tokens which spans below it count too is left out. The outermost agent's span is the main line, one inside it
a sub-agent.
"""

from __future__ import annotations

import sys
from collections import Counter

import msgspec
import numpy as np

from loadgen.base import parsing
from loadgen.base.clock import MS_NS
from loadgen.base.json_lines import Lines
from loadgen.base.text import format_count
from loadgen.features.traces import otel_spans
from loadgen.features.traces.call_order import MOST_DEPTH, SUBAGENT, RecordedCalls, name_role
from loadgen.features.traces.otel_spans import AGENT, CALL, TOOL, Span, SpanFile, SpanMessages
from loadgen.features.traces.trace_rows import FAILED, TraceColumns, TraceRows, find_growth
from loadgen.plan.planned_requests import UNKNOWN_LEN

_MOST_SPANS = 2_000_000  # 2 GiB of memory if all are calls of models
_OFF_NS = 100 * MS_NS  # of two machines' clocks; an agent's calls are seconds long
_NO_LENGTH = "a call of a model without its tokens, and without messages"
_LIMITED = (
    "{} recorded the limit of the output and not its length: the limit is what is requested; with "
    "--no-ignore-eos responses end by themselves"
)


class KeptSpan(msgspec.Struct):
    """What is kept of a span."""

    id: str
    parent: str
    begin_ns: int
    end_ns: int
    operation: str
    row: int  # of the file, from 0, and its place there
    place: int
    input_len: int
    output_len: int
    cached: int | None
    is_limit: bool  # the length of its answer is its limit
    messages: bool
    features: tuple[str, ...]  # of its body that not every server has
    failed: bool
    is_remote: bool
    conversation: str
    role: str
    inside: bool = False  # a span below it counts its tokens
    above: tuple[str, ...] = ()  # the agents' spans that it is in, the outermost first

    @property
    def counts(self) -> bool:
        """Whether it is a model's call with messages, or has both lengths and is not a tool's."""
        if self.operation == CALL and self.messages:
            return True
        return self.input_len > 0 and self.output_len > 0 and self.operation != TOOL

    @property
    def is_call(self) -> bool:
        """Whether it counts or is a model's call, and no span below it counts the same."""
        return not self.inside and (self.counts or self.operation == CALL)

    def explain_unsent(self) -> str:
        """Return why a call cannot be sent; "" if it can."""
        if self.failed and self.output_len <= 0:
            return FAILED
        return _NO_LENGTH if not self.counts or self.output_len <= 0 else ""


def read_otel(lines: Lines) -> TraceRows:
    """Read the calls of models in rows of spans, sorted by time.

    Raises UsageError that names a row and span: one whose parent is missing, or is below it, one that ends
    before it begins, one that begins before its parent does, and two of one id.
    """
    file, columns = SpanFile(lines), TraceColumns()
    prompts = list[tuple[tuple[int, int], int, int | None, str]]()
    kept, skipped = list[KeptSpan](), Counter[str]()
    for number, spans in enumerate(read_sessions(file).values()):
        calls = RecordedCalls()
        if not (sent := _add_session(calls, spans, skipped)):
            continue
        for lane, agent, span in zip(columns.trees.add(calls), calls.agents, sent, strict=True):
            prompts.append(((number, lane), span.input_len, span.cached, calls.roles[agent]))
            lens = span.input_len, span.output_len
            columns.add(span.begin_ns, lens, lines.number(span.row), number)
        kept += sent
    if not kept:
        whys = ", ".join(f"{count} {why}" for why, count in skipped.items())
        raise lines.file.refusal(f"no span is a call of a model with its tokens{whys and f' ({whys})'}")
    limited = sum(call.is_limit for call in kept)
    rows, places = (np.array([getattr(call, name) for call in kept]) for name in ("row", "place"))
    messages = SpanMessages(file, rows, places, [call.features for call in kept])
    return columns.make_sessions(
        lines,
        file_rows=len(kept) + skipped.total(),
        skipped=dict(skipped),
        notes=(_LIMITED.format(format_count(limited, "call")),) if limited else (),
        growth=find_growth(prompts) if all(call.input_len > 0 for call in kept) else None,
        messages=messages if all(call.messages for call in kept) else None,
    )


def read_sessions(file: SpanFile) -> dict[str, list[KeptSpan]]:
    """Read the spans of a file by session, in the order of their rows; raises UsageError as `read_otel`."""
    traces: dict[str, dict[str, KeptSpan]] = {}
    count = 0
    for row, spans in file.read():
        count += len(spans)
        if count > _MOST_SPANS:
            raise file.lines.file.refusal(f"holds more than {_MOST_SPANS:,} spans: cut out a part of it")
        for place, span in enumerate(spans):
            if not span.id or not span.trace:
                raise file.refusal(row, span.id, "has no id, or no trace's id")
            if span.end_ns < span.begin_ns:
                early_s = (span.begin_ns - span.end_ns) / 1e9
                raise file.refusal(row, span.id, f"ends {early_s:g} s before it begins")
            own = traces.setdefault(span.trace, {})
            if span.id in own:
                raise file.refusal(row, span.id, "stands twice in its trace: a span's id is its own")
            own[span.id] = _make_kept_span(span, row, place)
    sessions: dict[str, list[KeptSpan]] = {}
    for name, kept in traces.items():
        _place_spans(file, kept)
        conversation = next((span.conversation for span in kept.values() if span.conversation), "")
        sessions.setdefault(conversation or name, []).extend(kept.values())
    return sessions


def _make_kept_span(span: Span, row: int, place: int) -> KeptSpan:
    """Make what is kept of a span; lengths that its attributes lack are UNKNOWN_LEN."""
    attributes = span.attributes
    answer = otel_spans.read_count(attributes, otel_spans.OUTPUT_TOKENS)
    limit = otel_spans.read_count(attributes, otel_spans.LIMIT)
    prompt = otel_spans.read_count(attributes, otel_spans.INPUT_TOKENS)
    length = answer if answer is not None else limit
    messages = otel_spans.read_prompt(attributes) if otel_spans.has_messages(attributes) else []
    tools = bool(messages) and bool(otel_spans.read_tools(attributes))
    system = bool(messages) and messages[0]["role"] == "system"
    return KeptSpan(
        span.id,
        span.parent,
        span.begin_ns,
        span.end_ns,
        otel_spans.find_operation(attributes),
        row,
        place,
        min(prompt or UNKNOWN_LEN, parsing.MOST_TOKENS),
        min(UNKNOWN_LEN if length is None else length, parsing.MOST_TOKENS),
        otel_spans.read_count(attributes, otel_spans.CACHED_TOKENS),
        answer is None and limit is not None,
        bool(messages),
        ("tools",) * tools + ("system",) * system,
        span.failed,
        span.is_remote,
        sys.intern(otel_spans.read_text(attributes, otel_spans.CONVERSATION)),
        sys.intern(name_role(otel_spans.read_text(attributes, otel_spans.AGENT_NAME))),
    )


def _place_spans(file: SpanFile, spans: dict[str, KeptSpan]) -> None:
    """Set `above` of all spans of a trace, and `inside` of those above one that counts; raises UsageError."""
    placed: set[str] = set()
    for span in spans.values():
        chain = [span]
        while chain[-1].id not in placed and (parent := _find_parent(file, chain[-1], spans)) is not None:
            if len(chain) > len(spans):
                raise file.refusal(span.row, span.id, "is its own ancestor: its parents are a cycle")
            chain.append(parent)
        for child, parent in zip(chain[-2::-1], chain[:0:-1], strict=True):
            own = (parent.id,) if parent.operation == AGENT else ()
            child.above = parent.above + own
            if len(child.above) > MOST_DEPTH:
                raise file.refusal(child.row, child.id, f"is below more than {MOST_DEPTH} agents")
        placed.update(each.id for each in chain)
    for span in spans.values():
        if not span.counts:
            continue
        above = spans.get(span.parent)
        while above is not None and not above.inside:
            above.inside = True
            above = spans.get(above.parent)


def _find_parent(file: SpanFile, span: KeptSpan, spans: dict[str, KeptSpan]) -> KeptSpan | None:
    """Return a span's parent; None for a root, or for a remote one that is not in the file.

    Raises UsageError if another one is missing, or begins more than 0.1 s after the span.
    """
    if not span.parent:
        return None
    parent = spans.get(span.parent)
    if parent is None and span.is_remote:
        return None
    if parent is None:
        raise file.refusal(
            span.row, span.id, f"has a parent, {span.parent}, that is not in the file: export whole traces"
        )
    if span.begin_ns < parent.begin_ns - _OFF_NS:
        early_s = (parent.begin_ns - span.begin_ns) / 1e9
        raise file.refusal(
            span.row, span.id, f"begins {early_s:g} s before its parent: their times are of different clocks"
        )
    return parent


def _add_session(calls: RecordedCalls, spans: list[KeptSpan], skipped: Counter[str]) -> list[KeptSpan]:
    """Add the sendable calls of a session to `calls`, return their spans by begin; count the others."""
    sent = list[KeptSpan]()
    for span in (span for span in spans if span.is_call):
        if why := span.explain_unsent():
            skipped[why] += 1
        else:
            sent.append(span)
    if not sent:
        return sent
    sent.sort(key=lambda span: span.begin_ns)
    agents: dict[tuple[str, ...], int] = {(): 0}  # outermost ones are the main line
    owners = {span.id: span.role for span in spans if span.operation == AGENT}
    for path in sorted({span.above for span in spans}, key=len):
        for depth in range(1, len(path) + 1):
            inner = path[:depth]
            if inner not in agents:
                role = owners.get(inner[-1], SUBAGENT)
                agents[inner] = 0 if depth == 1 else calls.add_agent(agents[inner[:-1]], role)
    begin_ns = sent[0].begin_ns
    for span in (span for span in spans if span.operation == TOOL):
        worked_ns = (span.begin_ns - begin_ns, span.end_ns - begin_ns)
        calls.tools_ns.setdefault(agents[span.above], []).append(worked_ns)
    for span in sent:
        calls.add(span.begin_ns - begin_ns, span.end_ns - begin_ns, agents[span.above])
    return sent
