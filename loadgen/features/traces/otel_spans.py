"""OTel spans: the spans of a file, OTLP's JSON or flat JSON, and what their attributes mean.

Names are those of OpenTelemetry's own conventions (`gen_ai.*`, older names too), OpenInference (`llm.*`),
Traceloop (`llm.usage.*`, `traceloop.*`) and Vercel's AI SDK (`ai.*`). A new writer is a name in each row.
Spans hold messages as JSON (`gen_ai.input.messages` with parts, `ai.prompt.messages`), or one attribute a
field (`llm.input_messages.0.message.content`, `gen_ai.prompt.0.content`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from loadgen.base.arrays import Int64
from loadgen.base.errors import UsageError
from loadgen.base.json_lines import Lines, explain_json
from loadgen.base.parsing import check_epoch_ns, parse_instant_ns
from loadgen.base.text import quote_value
from loadgen.base.untrusted import NOT_JSON
from loadgen.wire.openai import SYSTEM_ROLES

EXPORT, TRACE = "resourceSpans", "spans"  # keys of a row
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_REMOTE_KINDS = (2, 5, "SPAN_KIND_SERVER", "SPAN_KIND_CONSUMER", "SpanKind.SERVER", "SpanKind.CONSUMER")
_REMOTE_FLAG = 0x200  # of OTLP: the parent is of another process
_ERRORS = (2, "ERROR", "STATUS_CODE_ERROR", "StatusCode.ERROR")
_NO_PARENT = ("", "0" * 16)
_INPUTS = ("gen_ai.input.messages", "ai.prompt.messages", "input.value")
_OUTPUTS = ("gen_ai.output.text", "ai.response.text", "gen_ai.completion.0.content", "ai.result.text")
_FLAT_INPUTS = ("llm.input_messages.", "gen_ai.prompt.")
_FLAT_FIELD = re.compile(r"(\d{1,6})\.(?:message\.)?(.+)")
_ROLES = (*SYSTEM_ROLES, "user", "assistant", "tool")
_TEXT_KINDS = ("text", "input_text", "output_text")


class Span(msgspec.Struct):
    """A span: one operation of a trace, its times in nanoseconds since 1970."""

    trace: str
    id: str
    parent: str  # "" of a root
    begin_ns: int
    end_ns: int
    attributes: Mapping[str, Any]
    is_remote: bool = False  # its parent may be of another process, and in no file
    failed: bool = False


class _Pair(msgspec.Struct, frozen=True):
    key: str
    value: dict[str, Any] = {}


def _decode_value(value: Any) -> Any:
    """Convert OTLP's value to plain JSON; None for an unknown type; raises ValueError for a bad intValue."""
    match value:
        case {"arrayValue": {"values": [*values]}}:
            return [_decode_value(each) for each in values]
        case {"kvlistValue": {"values": [*pairs]}}:
            named = [pair for pair in pairs if isinstance(pair, dict)]
            return {str(pair.get("key")): _decode_value(pair.get("value")) for pair in named}
        case {"intValue": str(text)} if not _INTEGER.fullmatch(text):
            raise ValueError(f"intValue {quote_value(text)} is not a whole number of 64 bits")
        case {"intValue": int() | str() as number}:
            return int(number)
        case {"stringValue": found} | {"doubleValue": found} | {"boolValue": found}:
            return found
    return None


class _Status(msgspec.Struct, frozen=True):
    code: int | str = 0
    status_code: int | str = 0


class _OtlpSpan(msgspec.Struct, rename="camel"):
    trace_id: str
    span_id: str
    start_time_unix_nano: int | str
    end_time_unix_nano: int | str
    parent_span_id: str = ""
    kind: int | str = 0
    flags: int = 0
    attributes: list[_Pair] = []
    status: _Status = _Status()

    def convert(self, trace: str) -> Span:
        """Convert to a Span, of `trace` if it names none; raises ValueError for a bad time or integer."""
        return Span(
            self.trace_id or trace,
            self.span_id,
            self.parent_span_id,
            _read_instant_ns("startTimeUnixNano", self.start_time_unix_nano),
            _read_instant_ns("endTimeUnixNano", self.end_time_unix_nano),
            {pair.key: _decode_value(pair.value) for pair in self.attributes},
            self.kind in _REMOTE_KINDS or bool(self.flags & _REMOTE_FLAG),
            self.status.code in _ERRORS,
        )


class _ScopeSpans(msgspec.Struct):
    spans: list[_OtlpSpan] = []


class _ResourceSpans(msgspec.Struct, rename="camel"):
    scope_spans: list[_ScopeSpans] = []
    instrumentation_library_spans: list[_ScopeSpans] = []  # before OTLP 0.15


class _Export(msgspec.Struct, rename="camel"):
    resource_spans: list[_ResourceSpans]

    def list_spans(self) -> Iterator[_OtlpSpan]:
        for resource in self.resource_spans:
            for scope in (*resource.scope_spans, *resource.instrumentation_library_spans):
                yield from scope.spans


class _Context(msgspec.Struct, frozen=True):
    trace_id: str = ""
    span_id: str = ""


class _FlatSpan(msgspec.Struct):
    start_time: str | int
    end_time: str | int
    trace_id: str = ""
    span_id: str = ""
    context: _Context = _Context()  # of Python's console exporter
    parent_span_id: str | None = None
    parent_id: str | None = None
    kind: int | str = 0
    attributes: dict[str, Any] = {}
    status: _Status | str = ""

    def convert(self, trace: str) -> Span:
        """Convert to a Span, of `trace` if it names none; raises ValueError for a bad time."""
        status = self.status if isinstance(self.status, str) else self.status.code or self.status.status_code
        return Span(
            self.trace_id or self.context.trace_id or trace,
            self.span_id or self.context.span_id,
            self.parent_span_id or self.parent_id or "",
            _read_instant_ns("start_time", self.start_time),
            _read_instant_ns("end_time", self.end_time),
            self.attributes,
            self.kind in _REMOTE_KINDS,
            status in _ERRORS,
        )


class _FlatTrace(msgspec.Struct):
    spans: list[_FlatSpan]
    trace_id: str = ""


def _read_instant_ns(name: str, value: int | str) -> int:
    try:
        is_number = isinstance(value, int) or value.isdigit()
        return check_epoch_ns(int(value)) if is_number else parse_instant_ns(str(value))
    except ValueError as error:
        raise ValueError(f"{name} {error}") from None


_Listed = Iterator[tuple[_OtlpSpan | _FlatSpan, str]]  # with the id of the trace that it is in
_Rows = tuple[str, Any, Callable[[Any], _Listed]]
_KINDS: tuple[_Rows, ...] = (
    (EXPORT, _Export, lambda row: ((span, "") for span in row.list_spans())),
    (TRACE, _FlatTrace, lambda row: ((span, row.trace_id) for span in row.spans)),
)
_SPANS: _Rows = ("", _FlatSpan, lambda row: iter([(row, "")]))


def _convert(span: _OtlpSpan | _FlatSpan, trace: str) -> Span:
    """Convert a span, whose parent of zeros becomes ""; raises ValueError that names the span."""
    try:
        made = span.convert(trace)
    except ValueError as error:
        raise ValueError(f"span {quote_value(span.span_id)} {error}") from None
    if made.parent in _NO_PARENT:
        made.parent = ""
    return made


class SpanFile:
    """The spans of a file, of which each row of JSON is an export, a trace or a span."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self._keys = msgspec.json.Decoder(dict[str, msgspec.Raw])
        self._decoders = {key: msgspec.json.Decoder(kind) for key, kind, _ in (*_KINDS, _SPANS)}
        self._kept: tuple[int, list[Span]] = (-1, [])

    def read(self) -> Iterator[tuple[int, list[Span]]]:
        """Yield (row, its spans) of all rows; raises UsageError that names a row."""
        for i, row in enumerate(self.lines.read_rows()):
            yield i, self._decode(i, row)

    def read_row(self, row: int) -> list[Span]:
        """Return the spans of one row, which is kept for the next call."""
        if self._kept[0] != row:
            self._kept = row, self._decode(row, self.lines[row])
        return self._kept[1]

    def refusal(self, row: int, span: str, why: str) -> UsageError:
        """Make the error that names flag, file, row and span."""
        return self.lines.refusal(row, f"span {quote_value(span)} {why}")

    def _decode(self, i: int, row: bytes) -> list[Span]:
        """Decode row i, from 0, to its spans; raises UsageError that names the row, or row and span."""
        try:
            keys = self._keys.decode(row)
            key, _, list_spans = next((each for each in _KINDS if each[0] in keys), _SPANS)
            return [_convert(*each) for each in list_spans(self._decoders[key].decode(row))]
        except NOT_JSON as error:
            raise self.lines.refusal(i, explain_json(row, error)) from None
        except ValueError as error:
            raise self.lines.refusal(i, f"{error}") from None


CALL, TOOL, AGENT, OTHER = "call", "tool", "agent", "other"  # what a span is of: a model's call, a tool's, …
# By attribute, and its values in lower case. The first attribute with a known value decides.
OPERATIONS: dict[str, dict[str, str]] = {
    "ai.operationId": {
        "ai.generatetext": AGENT,
        "ai.streamtext": AGENT,
        "ai.generatetext.dogenerate": CALL,
        "ai.streamtext.dostream": CALL,
        "ai.generateobject.dogenerate": CALL,
        "ai.streamobject.dostream": CALL,
        "ai.toolcall": TOOL,
    },
    "openinference.span.kind": {
        "llm": CALL,
        "tool": TOOL,
        "agent": AGENT,
        "chain": OTHER,
    },
    "gen_ai.operation.name": {
        "chat": CALL,
        "text_completion": CALL,
        "generate_content": CALL,
        "execute_tool": TOOL,
        "invoke_agent": AGENT,
        "invoke_workflow": AGENT,
    },
    "llm.request.type": {"chat": CALL, "completion": CALL},
    "traceloop.span.kind": {
        "tool": TOOL,
        "agent": AGENT,
        "workflow": AGENT,
        "task": OTHER,
    },
}
INPUT_TOKENS = (
    "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt",
    "llm.usage.prompt_tokens", "ai.usage.inputTokens", "ai.usage.promptTokens",
)  # fmt: skip
OUTPUT_TOKENS = (
    "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion",
    "llm.usage.completion_tokens", "ai.usage.outputTokens", "ai.usage.completionTokens",
)  # fmt: skip
CACHED_TOKENS = (
    "gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_read_input_tokens",
    "llm.token_count.prompt_details.cache_read", "llm.usage.cache_read_input_tokens",
    "ai.usage.cachedInputTokens", "ai.usage.inputTokenDetails.cacheReadTokens",
)  # fmt: skip
LIMIT = ("gen_ai.request.max_tokens", "llm.request.max_tokens", "ai.settings.maxTokens")
CONVERSATION = (
    "gen_ai.conversation.id", "session.id", "exgentic.session.id",
    "traceloop.association.properties.session_id", "langfuse.session.id", "ai.telemetry.metadata.sessionId",
)  # fmt: skip
AGENT_NAME = (
    "gen_ai.agent.name", "agent.name", "graph.node.id", "traceloop.entity.name", "ai.telemetry.functionId",
    "gen_ai.agent.id",
)  # fmt: skip


def find_operation(attributes: Mapping[str, Any]) -> str:
    """Return what a span is of, CALL, TOOL, AGENT or OTHER; OTHER if no attribute says it."""
    for name, known in OPERATIONS.items():
        value = attributes.get(name)
        if isinstance(value, str) and (found := known.get(value.lower())):
            return found
    return OTHER


def read_count(attributes: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    """Return the first number of tokens, 0 to below 10⁹, that an attribute of these names has, or None."""
    for name in names:
        value = attributes.get(name)
        if isinstance(value, str) and value.isdigit():
            value = int(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9:
            return int(value)
    return None


def read_text(attributes: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """Return the first text, not empty, that an attribute of these names has; "" without one."""
    return next((value for name in names if isinstance(value := attributes.get(name), str) and value), "")


def has_messages(attributes: Mapping[str, Any]) -> bool:
    """Whether a span may hold the messages of its prompt."""
    named = any(attributes.get(name) for name in _INPUTS[:2])
    return named or any(f"{prefix}0.{field}" in attributes for prefix, field in _FLAT_NAMES)


_FLAT_NAMES = (
    ("llm.input_messages.", "message.role"),
    ("llm.input_messages.", "message.content"),
    ("gen_ai.prompt.", "role"),
    ("gen_ai.prompt.", "content"),
)


def read_prompt(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of a call's prompt in OpenAI's form, a system text first; [] if unreadable."""
    for name in _INPUTS:
        found = _decode(attributes.get(name))
        if isinstance(found, dict):
            found = found.get("messages")
        if isinstance(found, list) and (messages := list(_convert_all(found))):
            break
    else:
        flat: dict[int, dict[str, Any]] = {}
        for name, value in attributes.items():
            prefix = next((prefix for prefix in _FLAT_INPUTS if name.startswith(prefix)), None)
            if prefix and (parts := _FLAT_FIELD.fullmatch(name[len(prefix) :])):
                flat.setdefault(int(parts[1]), {})[parts[2]] = value
        messages = list(_convert_all([_nest_flat(flat[number]) for number in sorted(flat)]))
    system = _join_text(_decode(attributes.get("gen_ai.system_instructions")))
    if system and messages and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": system}, *messages]
    return messages


def read_answer(attributes: Mapping[str, Any]) -> str:
    """Return the text of the first message of a call's answer; "" where it has none."""
    found = _decode(attributes.get("gen_ai.output.messages"))
    if isinstance(found, list) and (messages := list(_convert_all(found))):
        return str(messages[0].get("content") or "")
    for name in _OUTPUTS:
        if isinstance(text := attributes.get(name), str):
            return text
    flat = attributes.get("llm.output_messages.0.message.content")
    return flat if isinstance(flat, str) else ""


def read_tools(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the tools with a name that a call offers, as OpenAI's functions; [] without any."""
    found = _decode(attributes.get("gen_ai.tool.definitions"))
    if found is None:
        schemas = (name for name in attributes if name.startswith("llm.tools."))
        in_order = sorted(schemas, key=lambda name: (len(name), name))  # llm.tools.10 after llm.tools.9
        found = [_decode(attributes[name]) for name in in_order]
    tools = [tool for tool in found if isinstance(tool, dict)] if isinstance(found, list) else []
    for at, tool in enumerate(tools):
        if not isinstance(tool.get("function"), dict):
            function = {key: tool[key] for key in ("name", "description", "parameters") if key in tool}
            tools[at] = {"type": "function", "function": function}
    return [tool for tool in tools if tool["function"].get("name")]


def _decode(value: Any) -> Any:
    """Decode a text that begins as a JSON list or object, or None if it is neither; return others as is."""
    if not isinstance(value, str) or value[:1] not in ("[", "{"):
        return value
    try:
        return msgspec.json.decode(value)
    except NOT_JSON:
        return None


def _nest_flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Make a message of its flat fields: tool calls become a list, the texts of several parts one text."""
    message: dict[str, Any] = {}
    calls: dict[str, dict[str, Any]] = {}
    texts: list[str] = []
    for name, value in fields.items():
        head, _, rest = name.partition(".")
        number, _, field = rest.partition(".")
        if head == "tool_calls":
            calls.setdefault(number, {})[field.rpartition(".")[2]] = value
        elif head == "contents" and field.endswith("text"):
            texts.append(str(value))
        elif not rest:
            message[name] = value
    if texts and not message.get("content"):
        message["content"] = "".join(texts)
    if calls:
        message["tool_calls"] = [
            calls[number] for number in sorted(calls, key=lambda each: (len(each), each))
        ]
    return message


def _convert_all(found: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Yield messages in OpenAI's form; those without a known role are left out."""
    for message in found:
        if isinstance(message, dict) and message.get("role") in _ROLES:
            yield from _convert_message(message)


def _convert_message(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a message in OpenAI's form: of one with several tools' results a message for each."""
    parts = message.get("parts", message.get("content"))
    listed = [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    text, role = _join_text(parts), str(message["role"])
    results = [part for part in listed if str(part.get("type")).replace("-", "_") in _RESULTS]
    for part in results:
        given = next((part[key] for key in ("response", "result", "output", "content") if key in part), "")
        said = given if isinstance(given, str) else msgspec.json.encode(given).decode()
        named = part.get("id") or part.get("toolCallId") or part.get("tool_call_id") or ""
        yield {"role": "tool", "tool_call_id": str(named), "content": said}
    if results:
        return
    own = message.get("tool_calls")
    calls = [call for call in own if isinstance(call, dict)] if isinstance(own, list) else []
    calls += [part for part in listed if str(part.get("type")).replace("-", "_") == "tool_call"]
    made: dict[str, Any] = {"role": role, "content": text}
    if calls:
        made["tool_calls"] = [_make_call(call, number) for number, call in enumerate(calls)]
    if role == "tool":
        made["tool_call_id"] = str(message.get("tool_call_id") or message.get("id") or "")
    yield made


_RESULTS = ("tool_call_response", "tool_result")


def _make_call(call: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Make OpenAI's tool call, its arguments as text; without an id it is call_N by its `number`."""
    inside = call.get("function")
    function: Mapping[str, Any] = inside if isinstance(inside, dict) else call
    given = next((function[key] for key in ("arguments", "args", "input") if key in function), "{}")
    text = given if isinstance(given, str) else msgspec.json.encode(given).decode()
    name = function.get("name") or call.get("toolName") or "tool"
    named = call.get("id") or call.get("toolCallId") or f"call_{number}"
    return {"id": str(named), "type": "function", "function": {"name": str(name), "arguments": text}}


def _join_text(parts: Any) -> str:
    """Return the text of a message's content, or of its parts of text; "" without any."""
    if isinstance(parts, str):
        return parts
    if not isinstance(parts, list):
        return ""
    texts = [
        part.get("content", part.get("text", ""))
        for part in parts
        if isinstance(part, dict) and part.get("type") in _TEXT_KINDS
    ]
    return "".join(text for text in texts if isinstance(text, str))


class SpanMessages:
    """The messages of calls, read again from their file when they are needed."""

    def __init__(self, file: SpanFile, rows: Int64, places: Int64, features: list[tuple[str, ...]]) -> None:
        self._file, self._rows, self._places = file, rows, places
        self.features = features  # by row, what its body has that not every server takes: tools, system

    def reorder(self, order: Int64) -> SpanMessages:
        """Return the messages of rows in another order, of which `order` is each one's earlier index."""
        features = [self.features[row] for row in order.tolist()]
        return SpanMessages(self._file, self._rows[order], self._places[order], features)

    def read_attributes(self, row: int) -> Mapping[str, Any]:
        """Return the attributes of a row's span."""
        return self._file.read_row(int(self._rows[row]))[int(self._places[row])].attributes
