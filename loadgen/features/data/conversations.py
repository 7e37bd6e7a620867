"""Conversations: rows of one message each, as MLPerf's agentic schema has them, read turn by turn.

Each recorded answer is a turn of a session, sent with the turns before it.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from loadgen.base.arrays import Int64
from loadgen.base.clock import SECOND_NS
from loadgen.base.json_lines import Lines, explain_json
from loadgen.base.parsing import MOST_TOKENS, YEAR_S
from loadgen.base.text import format_count, quote_value
from loadgen.base.untrusted import NOT_JSON
from loadgen.features.data import bodies, row_kinds
from loadgen.features.data.row_kinds import RowObject
from loadgen.plan.planned_requests import UNKNOWN_LEN, TurnRequests, fingerprint, make_turns
from loadgen.plan.request_sources import PlanInputs, SourcedRequests, count_sessions
from loadgen.wire.openai import Dialect

USER, ASSISTANT, TOOL = "user", "assistant", "tool"
# The schema's table: which role may follow which; "" is the begin.
NEXT = {"": (USER,), USER: (ASSISTANT,), ASSISTANT: (TOOL, USER), TOOL: (ASSISTANT, USER)}
# The chat API has these keys of a message; other keys of a row are not part of it.
_MESSAGE_KEYS = ("role", "content", "name", "reasoning_content", "reasoning", "tool_calls", "tool_call_id")
# These keys belong to the request that a client's turn makes.
_FIELDS = (
    "model temperature top_p top_k min_p seed repetition_penalty frequency_penalty presence_penalty "
    "stop logit_bias user chat_template chat_template_kwargs tool_choice parallel_tool_calls "
    "response_format reasoning_effort "
)
_REQUEST_KEYS = frozenset(_FIELDS.split())
LENGTH_KEYS = ("max_completion_tokens", "max_new_tokens", "max_tokens")
_SILENT = "has no assistant's turn: nothing would be generated"
_CUT_SHORT = "give the whole conversation, turns 1, 2, 3, …"
_Tokens = Annotated[int, msgspec.Meta(ge=1, le=MOST_TOKENS)] | None
_DECODE = msgspec.json.Decoder(RowObject).decode
_DECODE_TEXT = msgspec.json.Decoder(str).decode
_CALLS = "tool_calls"


class _Function(msgspec.Struct, gc=False):
    name: str
    arguments: str


class _Call(msgspec.Struct, gc=False):
    id: str
    function: _Function


class _ToolResult(msgspec.Struct, gc=False):
    tool_call_id: str
    content: msgspec.Raw


class TurnRow(msgspec.Struct, gc=False):
    """The fields of a row that are checked; the message itself keeps its bytes."""

    conversation_id: str
    turn: Annotated[int, msgspec.Meta(ge=1)]
    role: Literal["user", "assistant", "tool"]
    content: str | list[dict[str, msgspec.Raw]] | None = None
    model: str | None = None
    system: str | None = None
    tools: list[dict[str, msgspec.Raw]] | None = None
    tool_calls: list[_Call] | None = None
    tool_results: list[_ToolResult] | None = None
    tool_call_id: str | None = None
    delay_seconds: Annotated[float, msgspec.Meta(ge=0, le=YEAR_S)] | None = None
    n: Literal[1] | None = None
    max_completion_tokens: _Tokens = None
    max_new_tokens: _Tokens = None
    max_tokens: _Tokens = None
    output_tokens: _Tokens = None  # of an assistant's row: how long its answer was; no key of the schema

    def list_answered_calls(self) -> list[str]:
        """Return the ids of the tool calls whose results this row has; [] if it has none."""
        if self.tool_results is not None:
            return [result.tool_call_id for result in self.tool_results]
        return [] if self.tool_call_id is None else [self.tool_call_id]

    @property
    def limit(self) -> int | None:
        """The most tokens of the answer to this row, by the first of LENGTH_KEYS that is given, or None."""
        return next((value for key in LENGTH_KEYS if (value := getattr(self, key)) is not None), None)


def make_chat_fields(turns: Sequence[RowObject]) -> dict[str, Any]:
    """Make a body's fields of a conversation's first turns, in order: messages and settings.

    The messages are the system prompt, if there is one, and those of all turns: one, or one for each tool
    result. Other fields are those of the last turn, the tools those of the latest turn that has any.
    """
    system, messages = turns[0].get("system"), list[dict[str, Any]]()
    if system is not None and bytes(system) != b"null":
        messages.append({"role": "system", "content": system})
    for turn in turns:
        if "tool_results" in turn and _DECODE_TEXT(turn["role"]) == TOOL:
            results: list[RowObject] = msgspec.json.decode(turn["tool_results"], type=list[RowObject])
            messages += [{"role": TOOL, **result} for result in results]
        else:
            messages.append({key: turn[key] for key in _MESSAGE_KEYS if key in turn})
    fields = {"messages": messages, **{key: turns[-1][key] for key in turns[-1] if key in _REQUEST_KEYS}}
    tools = (turn["tools"] for turn in reversed(turns) if "tools" in turn)
    latest = next((each for each in tools if bytes(each) != b"null"), None)
    return fields if latest is None else {**fields, "tools": latest}


class Conversations:
    """All conversations of a file, whose turns are read when they are needed.

    `rows` is int64[rows]: the rows of the first conversation in turn, then the second's, in the order in
    which they begin in the file; `begins` is int64[conversations + 1], where each begins in `rows`.
    `generated` is int64[answers, 2]: conversation and place in it of each recorded answer, in the file's
    order; `output_lens` is int64[answers], UNKNOWN_LEN where the file names no limit. `with_tools` is the
    first of them that is asked for with tools, None where no turn has any, `with_system` the first with a
    system prompt; `models` has, by name, the first of them that is asked of a model.
    """

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        codes, turns = array("q"), array("q")  # of each row: its conversation's number, its turn
        # Rows of assistants, tokens of their answers, and the pauses before they were asked for.
        answers, limits, delays_ns = array("q"), array("q"), array("q")
        self.with_tools: int | None = None
        self.with_system: int | None = None
        self.models: dict[str, int] = {}
        known: dict[str, _Open] = {}
        roles, called = Counter[str](), 0
        for i, row in enumerate(_read_turns(lines)):
            if (held := known.get(row.conversation_id)) is None:
                held = known[row.conversation_id] = _Open(len(known))
            if why := held.explain_wrong(row):
                raise lines.refusal(i, f"conversation {quote_value(row.conversation_id)}: {why}")
            if row.turn == 1:
                held.system = _hash_system(row)
            codes.append(held.number)
            turns.append(row.turn)
            roles[row.role] += 1
            called += len(row.tool_calls or ())
            held.has_tools = held.has_tools or bool(row.tools)
            if row.role == ASSISTANT:
                if self.with_tools is None and held.has_tools:
                    self.with_tools = len(answers)
                if self.with_system is None and held.system:
                    self.with_system = len(answers)
                row_kinds.name_first(self.models, held.model, len(answers))
                answers.append(i)
                limit = held.limit or row.output_tokens
                limits.append(UNKNOWN_LEN if limit is None else limit)
                delays_ns.append(held.waited_ns)
                held.waited_ns, held.model = 0, None
                held.calls = frozenset(call.id for call in row.tool_calls or ())
            else:
                held.model = row.model
                held.waited_ns += round((row.delay_seconds or 0.0) * SECOND_NS)
            held.turn, held.role, held.limit = row.turn, row.role, row.limit or 0
        numbers = np.frombuffer(codes, np.int64)
        self.rows: Int64 = np.argsort(numbers, kind="stable").astype(np.int64)
        self.begins: Int64 = np.concatenate(([0], np.cumsum(np.bincount(numbers)))).astype(np.int64)
        answered = np.frombuffer(answers, np.int64)
        silent = np.bincount(numbers[answered], minlength=len(self)) == 0
        if silent.any():
            first = int(self.rows[self.begins[int(silent.argmax())]])
            raise lines.refusal(first, f"{_name_conversation(lines, first)}: {_SILENT}")
        places = np.frombuffer(turns, np.int64)[answered] - 1
        self.generated: Int64 = np.stack((numbers[answered], places), axis=1)
        self.output_lens: Int64 = np.frombuffer(limits, np.int64).copy()
        self.delays_ns: Int64 = np.frombuffer(delays_ns, np.int64).copy()
        tooled = sum(held.has_tools for held in known.values())
        # Messages of each role, calls of tools, and conversations that have tools: what there is of each.
        self.held = {**roles, "tool calls": called, "conversations with tools": tooled}

    def __len__(self) -> int:
        return len(self.begins) - 1

    def list_before(self, conversation: int, turn: int) -> list[RowObject]:
        """Return a conversation's first `turn` turns: what is known when the next one is due."""
        begin = int(self.begins[conversation])
        rows = self.rows[begin : begin + turn].tolist()
        is_span = rows[-1] - rows[0] + 1 == len(rows)
        lines = self.lines.read_span(rows[0], rows[-1] + 1) if is_span else map(self.lines.__getitem__, rows)
        return list(map(_DECODE, lines))

    def name_turn(self, conversation: int, turn: int) -> str:
        """Name a conversation's turn, from 1, as `data.jsonl row 17, conversation 'c-3'`."""
        row = int(self.rows[int(self.begins[conversation]) + turn - 1])
        return f"{self.lines.name_row(row)}, {_name_conversation(self.lines, row)}"


def _read_turns(lines: Lines) -> Iterator[TurnRow]:
    """Yield each row's checked fields; raises UsageError that names row and conversation."""
    decode = msgspec.json.Decoder(TurnRow).decode
    for i, fields in enumerate(row_kinds.read_objects(lines, row_kinds.CONVERSATIONS)):
        encoded = msgspec.json.encode(fields)
        try:
            yield decode(encoded)
        except NOT_JSON as error:
            why = explain_json(encoded, error)
            with suppress(*NOT_JSON):
                name = _DECODE_TEXT(fields["conversation_id"])
                why = f"conversation {quote_value(name)}: {why}"
            raise lines.refusal(i, why) from None


class _Open(msgspec.Struct, gc=False):
    """A conversation, as far as its rows are read."""

    number: int
    turn: int = 0
    role: str = ""
    limit: int = 0  # of the answer to its last turn
    system: int = 0  # its hash
    waited_ns: int = 0  # since its last answer
    model: str | None = None  # that its last turn asks for
    has_tools: bool = False
    calls: frozenset[str] = frozenset()  # of tools, by its last assistant

    def explain_wrong(self, row: TurnRow) -> str:
        """Explain why a row cannot follow; "" if it can."""
        due, last = self.turn + 1, self.role
        if row.turn < due:
            return f"turn {row.turn} comes twice, or after turn {due - 1}: order the rows by turn"
        if row.turn > due:
            return f"turn {due} is missing before turn {row.turn}: {_CUT_SHORT}"
        if row.role not in NEXT[last]:
            begun = "begins with" if not last else f"has turn {due - 1} of role {last!r}, then"
            return f"{begun} the role {row.role!r}: give {' or '.join(map(repr, NEXT[last]))}"
        called = row.list_answered_calls() if row.role == TOOL else []
        if row.role == TOOL and not called:
            return "a tool's turn has no `tool_results`"
        if row.role == USER and not row.content:
            return "a user's turn has no `content`"
        if row.role == ASSISTANT and row.content is None and not row.tool_calls:
            return "an assistant's turn has neither `content` nor `tool_calls`"
        if foreign := [each for each in called if each not in self.calls]:
            return f"a tool result without a call: no call {quote_value(foreign[0])} before it"
        if row.turn > 1 and _hash_system(row) not in (0, self.system):
            return "its `system` is not that of its first turn, where it belongs"
        return ""


def _hash_system(row: TurnRow) -> int:
    return 0 if row.system is None else hash(row.system) or 1


def _name_conversation(lines: Lines, row: int) -> str:
    return f"conversation {quote_value(_DECODE_TEXT(_DECODE(lines[row])['conversation_id']))}"


class RecordedTurns(TurnRequests):
    """The requests of recorded conversations: the messages before each recorded answer.

    Tools, tool results, calls and reasoning have the bytes that they have in the file.
    """

    def __init__(self, conversations: Conversations, answers: Int64, output_lens: Int64, form: str) -> None:
        self.format = form
        self._conversations, self._answers = conversations, answers
        self.output_lens = output_lens
        sent = {int(answer): i for i, answer in reversed(list(enumerate(answers.tolist())))}
        asking = {"tools": conversations.with_tools, "system": conversations.with_system}
        # Features that not every server has, each with the first request that asks for it.
        self.features = {name: sent[i] for name, i in asking.items() if i is not None and i in sent}
        self.models = {name: sent[i] for name, i in conversations.models.items() if i in sent}
        self.held = conversations.held  # messages of each role, tool calls and conversations with tools
        self.input_lens: Int64 = np.full(len(answers), UNKNOWN_LEN, dtype=np.int64)

    def request_after(
        self, i: int, answers: Sequence[dict[str, Any]], dialect: Dialect, model: str
    ) -> dict[str, Any]:
        """Make the chat body with the server's own `answers` in place of the first recorded ones.

        Where the recorded answer called tools its calls stay: the recorded results are theirs. A length that
        is known is the body's limit.
        """
        conversation, turn = self._conversations.generated[self._answers[i]].tolist()
        turns = self._conversations.list_before(conversation, turn)
        if answers:
            turns = _replace_answers(turns, answers)
        body = {"model": model, **make_chat_fields(turns)}
        if self.output_lens[i] > 0:
            body[dialect.limit_field] = int(self.output_lens[i])
        return dialect.convert_chat(body)

    def name_row(self, i: int) -> str:
        """Name request i by the row of the turn that it answers, and its conversation."""
        return self._conversations.name_turn(*self._conversations.generated[self._answers[i]].tolist())

    def digest(self) -> str:
        """Return a hash of the file's bytes, of the requested answers and their lengths."""
        file = self._conversations.lines.digest().encode()
        return fingerprint(self.format, (self._answers, self.output_lens), [file])


def _replace_answers(turns: Sequence[RowObject], answers: Sequence[dict[str, Any]]) -> list[RowObject]:
    """Return the turns with the first recorded answers replaced by these, which keep recorded tool calls."""
    live, own = iter(answers), []
    for turn in turns:
        answer = next(live, None) if _DECODE_TEXT(turn["role"]) == ASSISTANT else None
        calls = {key: turn[key] for key in (_CALLS,) if key in turn}
        own.append(turn if answer is None else {**answer, **calls})
    return own


def of_rows(lines: Lines, kind: str, inputs: PlanInputs) -> SourcedRequests:
    """Make a request for each recorded answer, by conversation, with a note on what is sent.

    --output-len replaces the recorded limits. Raises UsageError for other rows, and another API than chat.
    """
    conversations = Conversations(lines)
    if not inputs.dialect.chat:
        raise bodies.refuse_api(lines, kind, inputs.dialect, "openai-chat")
    by_conversation = np.argsort(conversations.generated[:, 0], kind="stable").astype(np.int64)
    counts = np.bincount(conversations.generated[:, 0], minlength=len(conversations))
    counts = counts[counts > 0].astype(np.int64)
    whole = make_turns(counts, conversations.delays_ns[by_conversation])
    chosen = np.arange(count_sessions(whole, inputs.profile, inputs.most)) % len(whole)
    turns, answers = whole.choose(chosen), by_conversation[whole.list_chosen(chosen)]
    count = min(len(answers), inputs.most or len(answers))
    turns, answers = turns.cut(count), answers[:count]
    output_lens = conversations.output_lens[answers]
    asked = inputs.profile.custom_output_len or UNKNOWN_LEN
    if asked > 0:
        output_lens = np.full_like(output_lens, asked)
    facts = row_kinds.make_facts(kind, lines, answers)
    recorded = f"{format_count(len(conversations), 'conversation')}, {len(conversations.generated)} responses"
    sent = f"{format_count(len(turns), 'session')} with {format_count(len(answers), 'turn')}"
    made = RecordedTurns(conversations, answers, output_lens, kind)
    return SourcedRequests(made, facts, notes=(f"{recorded}: sent as {sent}",), turns=turns)
