"""OpenAI: requests and messages of its two APIs, the text in these, and the Dialect of every API."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Final, TypeVar

import msgspec
from msgspec.structs import replace

from loadgen.base.errors import UsageError
from loadgen.base.untrusted import NOT_JSON, read_error_text

Written = str | list[Any] | dict[str, Any] | None  # text, or parts of it (Mistral, Databricks, Anthropic)

# The keys of a part under which text lies; True: what is there is reasoning. Others are not text of a model:
# ids, signatures, encrypted reasoning, data of pictures and sounds.
_KEYS: Final = {
    "text": False,
    "content": False,
    "refusal": False,
    "transcript": False,  # of audio
    "name": False,
    "function": False,
    "custom": False,
    "thinking": True,
    "reasoning": True,
    "reasoning_content": True,
    "summary": True,  # of reasoning
}
# Arguments of a tool call: text, or the object that it is.
_OBJECTS: Final = frozenset(("arguments", "input", "partial_json"))
_OF_THOUGHT: Final = ("thinking", "reasoning", "thought", "redacted_thinking")  # types begin so


class WrittenText(msgspec.Struct, frozen=True, gc=False):
    """The text that a model wrote in a part of a message: the answer, and apart from it the reasoning."""

    answer: str = ""
    reasoning: str = ""


def read_written(value: Any, thought: bool = False) -> WrittenText:
    """Collect the text in a value of any JSON form; all of it is reasoning if `thought`.

    Raises RecursionError where it is too deep, as the parser does, which comes almost as far.
    """
    answer: list[str] = []
    reasoning: list[str] = []
    _append_text(value, thought, answer, reasoning)
    return WrittenText("".join(answer), "".join(reasoning))


def has_written(value: Any) -> bool:
    """Whether `read_written` finds any text; ends at the first: each message of a tool call is checked."""
    if isinstance(value, dict):
        for key, part in value.items():
            if part and (key in _OBJECTS or (key in _KEYS and has_written(part))):
                return True
    elif isinstance(value, list):
        for part in value:
            if has_written(part):
                return True
    return isinstance(value, str) and value != ""


def _append_text(value: Any, thought: bool, answer: list[str], reasoning: list[str]) -> None:
    """Append the texts in a value to `answer`, or to `reasoning` if `thought` or where it is marked so."""
    if isinstance(value, str):
        (reasoning if thought else answer).append(value)
    elif isinstance(value, list):
        for part in value:
            _append_text(part, thought, answer, reasoning)
    elif isinstance(value, dict):
        kind = value.get("type")
        is_kind_of_thought = kind.__class__ is str and kind.startswith(_OF_THOUGHT)
        thought = thought or is_kind_of_thought or value.get("thought") is True
        for key, part in value.items():
            if key in _KEYS:
                _append_text(part, thought or _KEYS[key], answer, reasoning)
            elif key in _OBJECTS and part:
                text = part if isinstance(part, str) else msgspec.json.encode(part).decode()
                _append_text(text, thought, answer, reasoning)


# A message shows this by itself; `records.decoded_stream` settles the rest by `usage`.
NOTHING: Final = 0  # a role, a ping, a usage message
CLOSING: Final = 1  # a finish reason without so much as an empty text
ENDING: Final = 2  # an empty text with a finish reason: a last special token, or only the end
MAYBE: Final = 3  # an empty text: incomplete UTF-8, a special token, or nothing
TOKEN: Final = 4  # text

# The bounds of what a server counts: beyond them its message is malformed. Sums of any run stay in 64 bits.
MOST: Final = 2**31 - 1
Count = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
CountOrNone = Annotated[int, msgspec.Meta(ge=-1, le=MOST)]  # vLLM's -1: not counted
Code = Annotated[int, msgspec.Meta(ge=-MOST, le=MOST)]

Thought = Any  # reasoning, in whichever form: a value of an unexpected type is not text
Answer = Any

# Finish reasons of an answer that is not all it would have been, and what each means.
FAILED_ENDS: Final = {
    **dict.fromkeys(("abort", "aborted", "cancelled", "canceled"), "the server stopped this request"),
    "timeout": "the server's own time limit for this request passed",
    **dict.fromkeys(("error", "network_error"), "the server failed during the response"),
    **dict.fromkeys(
        ("content_filter", "content-filter", "sensitive", "safety", "recitation"),
        "a filter of the server cut this response",
    ),
    "insufficient_system_resource": "the server had no room left for this request",
}
_EMPTY = (b"", b"null", b"false", b"[]")
_ROLE = b'"role"'  # a message of another API, and no error
_NO_MESSAGE = "an error without a message"
_CHUNK_SEAM = re.compile(rb"\r\n[0-9A-Fa-f]+\r\n")


def _join_phrase(parts: Iterable[str]) -> str:
    return ": ".join(filter(None, map(str.strip, parts))) or _NO_MESSAGE


# Names in a chat request that are written in several ways; each limit is the length of the answer.
ANSWER_LIMITS: Final[tuple[str, ...]] = ("max_completion_tokens", "max_tokens")
REASONING_FIELDS: Final = ("reasoning", "reasoning_content")  # vLLM; SGLang, llama.cpp, older vLLM
SYSTEM_ROLES: Final = ("system", "developer")


class PromptDetails(msgspec.Struct, gc=False):
    """The details of `usage.prompt_tokens`."""

    cached_tokens: CountOrNone | None = None
    image_tokens: Any = None  # SGLang's
    multimodal_tokens: Any = None  # vLLM's, by modality


class CompletionDetails(msgspec.Struct, gc=False):
    """The details of `usage.completion_tokens`."""

    reasoning_tokens: CountOrNone | None = None


class Usage(msgspec.Struct, gc=False):
    """The token counts in an answer's `usage`."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None
    total_tokens: Any = None  # of any type: they are compared, and never counted by
    reasoning_tokens: Any = None  # SGLang's place for those of the details


class DraftTally(msgspec.Struct, gc=False):
    """A request's drafts: vLLM's `metrics.speculative_decoding` (--per-request-spec-decode-metrics)."""

    num_spec_steps: CountOrNone | None = None  # steps with draft tokens to verify
    num_accepted_draft_tokens: CountOrNone | None = None


_SGLANGS = {"num_spec_steps": "spec_verify_ct", "num_accepted_draft_tokens": "spec_num_correct_drafts"}


class VerifiedDrafts(DraftTally, gc=False, rename=_SGLANGS):
    """A request's drafts as SGLang names them: each of its steps after the first verifies some."""

    num_spec_steps: CountOrNone | None = None
    num_accepted_draft_tokens: CountOrNone | None = None


class SglangExtension(msgspec.Struct, gc=False):
    """SGLang's `sglext`, in a message before the usage; the drafts if `return_spec_tokens_details` is set."""

    spec_tokens_details: VerifiedDrafts | None = None


class Timing(msgspec.Struct, gc=False):
    """vLLM's `metrics` (--enable-per-request-metrics): its own times of a request, with the usage.

    Other APIs give theirs the same names; one that vLLM does not report begins with the server's arrival.
    """

    queue_time_ms: float | None = None  # taken into the queue → first scheduled
    time_to_first_token_ms: float | None = None  # first scheduled → first token: without the queue
    generation_time_ms: float | None = None  # first token → last
    arrival_to_first_token_ms: float | None = None
    speculative_decoding: msgspec.Raw = msgspec.Raw()  # unread: vLLM may change its shape


class SlotTimings(msgspec.Struct, gc=False):
    """llama.cpp's `timings` of a request, in its last message: from when a slot took it up."""

    cache_n: CountOrNone | None = None  # prompt tokens found in the cache
    prompt_n: CountOrNone | None = None  # prompt tokens computed
    prompt_ms: float | None = None  # taken up → first token
    predicted_n: CountOrNone | None = None
    draft_n_accepted: CountOrNone | None = None  # draft tokens
    predicted_ms: float | None = None  # first → last token


class ErrorObject(msgspec.Struct, gc=False):
    """The `error` object of an answer."""

    message: str | None = None
    code: Code | str | None = None

    def __str__(self) -> str:
        return _join_phrase(str(part) for part in (self.code, self.message) if part is not None)

    def __bool__(self) -> bool:
        """Whether it holds anything: gateways write an empty one in messages that are whole."""
        return bool(self.code or (self.message and self.message.strip()))


Error = ErrorObject | str | bool | int | float | list[msgspec.Raw] | None  # in any form that servers write


class Choice(msgspec.Struct, gc=False):
    """One choice of a message, in whichever dialect."""

    index: Count = 0
    finish_reason: str | None = None
    token_ids: list[int] | None = None

    def classify(self) -> int:
        """Return what the choice carries: TOKEN, MAYBE, ENDING, CLOSING or NOTHING."""
        raise NotImplementedError

    def read_content(self) -> str:
        """Return its text, with reasoning and tool calls."""
        raise NotImplementedError

    def has_reasoning(self) -> bool:
        """Whether it carries reasoning and no text of the answer itself."""
        return False

    def has_visible_text(self) -> bool:
        """Whether it carries text that a user sees: of the answer itself, or of a tool call."""
        return self.classify() == TOKEN and not self.has_reasoning()

    def is_repeat(self) -> bool:
        """Whether it holds the whole answer again, which in a stream repeats earlier messages."""
        return False


_Part = TypeVar("_Part")
_TIMING: msgspec.json.Decoder[Timing | None] = msgspec.json.Decoder(Timing | None)
_DRAFTS: msgspec.json.Decoder[DraftTally | None] = msgspec.json.Decoder(DraftTally | None)
_EXTENSION: msgspec.json.Decoder[SglangExtension | None] = msgspec.json.Decoder(SglangExtension | None)
_TIMINGS: msgspec.json.Decoder[SlotTimings | None] = msgspec.json.Decoder(SlotTimings | None)


def _decode_optional(raw: msgspec.Raw, decoder: msgspec.json.Decoder[_Part | None]) -> _Part | None:
    """Decode a part of a message; None if it is missing or has another type."""
    if not bytes(raw):
        return None
    try:
        return decoder.decode(raw)
    except NOT_JSON:
        return None


OwnCounts = tuple[Timing | None, SlotTimings | None, DraftTally | None]  # by the server; None: not reported


class Message(msgspec.Struct, gc=False):
    """One event of a stream, or the whole answer where it is not streamed: the fields that matter."""

    choices: Sequence[Choice] | None = None
    usage: Usage | None = None
    error: Error = None
    metrics: msgspec.Raw = msgspec.Raw()  # unread: other servers may mean anything by it
    timings: msgspec.Raw = msgspec.Raw()  # so is this
    sglext: msgspec.Raw = msgspec.Raw()  # and this

    def read_own_counts(self) -> OwnCounts:
        """Return vLLM's times of the request, llama.cpp's times and counts, and any server's drafts."""
        timing, extension = _decode_optional(self.metrics, _TIMING), _decode_optional(self.sglext, _EXTENSION)
        drafts = None if timing is None else _decode_optional(timing.speculative_decoding, _DRAFTS)
        drafts = drafts if extension is None else extension.spec_tokens_details
        return timing, _decode_optional(self.timings, _TIMINGS), drafts

    def read_abort_reason(self) -> str:
        """Return why the server aborted the request; "" if it did not, or the API does not say."""
        return ""

    def read_fault(self) -> str | None:
        """Return the server's error message, never blank; None if it reports none.

        An error that holds nothing is one only where it stands alone: gateways write `"error": ""` in every
        message.
        """
        error = self.error
        if error is None or error is False or (not error and self.choices):
            return None
        if isinstance(error, list):
            return _join_phrase(read_error_text(bytes(part)) for part in error)
        return _join_phrase(() if error is True else (str(error),))


class Remark(msgspec.Struct, gc=False):
    """An event without choices: `{"object": "error", "message": …}`, `{"detail": …}`, others.

    Such events are rare, and every field of Message costs time in all the others.
    """

    code: msgspec.Raw = msgspec.Raw()
    message: msgspec.Raw = msgspec.Raw()
    detail: msgspec.Raw = msgspec.Raw()  # FastAPI's: text, a list, an object
    errors: msgspec.Raw = msgspec.Raw()  # Cloudflare's: a list
    error_msg: msgspec.Raw = msgspec.Raw()  # Baidu's
    error_message: msgspec.Raw = msgspec.Raw()
    msg: msgspec.Raw = msgspec.Raw()


_REMARK: msgspec.json.Decoder[Remark] = msgspec.json.Decoder(Remark)


def read_remark(line: bytes) -> str | None:
    """Return the code and the first text of an error in an event without choices; None if there is none."""
    try:
        event = _REMARK.decode(line)
    except NOT_JSON:
        return None
    code, *texts = map(bytes, (getattr(event, name) for name in Remark.__struct_fields__))
    text = next((text for text in texts if text not in _EMPTY), None)
    if text is None or _ROLE in text:
        return None
    return _join_phrase(read_error_text(part) for part in (code, text) if part not in _EMPTY)


class Delta(msgspec.Struct, gc=False):
    """The part that a chat message adds, or a whole answer that is not streamed.

    A field of type Thought holds reasoning, of type Answer what a user sees. Several may hold the same text
    (OpenRouter's `reasoning` and `reasoning_details`), so the first one that has any counts.
    """

    role: str | None = None
    content: Written = None
    reasoning: Thought = None  # vLLM
    reasoning_content: Thought = None  # SGLang, DeepSeek, older vLLM
    tool_calls: Answer = None
    reasoning_details: Thought = None  # OpenRouter, MiniMax
    reasoning_text: Thought = None  # GitHub Copilot
    thinking: Thought = None  # Ollama
    thinking_blocks: Thought = None  # LiteLLM, of Anthropic
    refusal: Answer = None
    function_call: Answer = None  # before tool calls
    audio: Answer = None  # its transcript

    def gather_text(self) -> WrittenText:
        """Collect all text that the model wrote in it, and which of it is reasoning."""
        content, thought = self.content or "", self.reasoning or self.reasoning_content or ""
        usual = Delta(self.role, self.content, self.reasoning, self.reasoning_content)
        if isinstance(content, str) and isinstance(thought, str) and self == usual:  # nearly all are so
            return WrittenText(content, thought)
        own = read_written(content)
        reasoning, answers = own.reasoning, [own.answer]
        for value in filter(None, _thought_values(self)):
            if found := read_written(value, True).reasoning:
                reasoning = found
                break
        answers += [read_written(value).answer for value in _other_values(self) if value]
        return WrittenText("".join(answers), reasoning)

    def has_text(self) -> bool:
        """Whether it holds any text that the model wrote."""
        return any(_values(self)) and any(map(has_written, filter(None, _values(self))))


_THOUGHTS: Final = tuple(name for name, kind in Delta.__annotations__.items() if kind == "Thought")
_ANSWERS: Final = tuple(name for name, kind in Delta.__annotations__.items() if kind == "Answer")
_NO_THOUGHTS: Final = (None,) * len(_THOUGHTS)
_thought_values, _other_values = attrgetter(*_THOUGHTS), attrgetter(*_ANSWERS)
_answer_values = attrgetter("content", *_ANSWERS)
_values = attrgetter("content", *_THOUGHTS, *_ANSWERS)
_NO_DELTA = Delta()


class TextChoice(Choice, gc=False):
    """A choice of OpenAI's APIs: `text` or a `delta` in a stream, `message` in a whole answer.

    Gateways send the form of one API at the path of the other.
    """

    text: Written = None
    delta: Delta | None = None
    message: Delta | None = None
    reasoning: Thought = None  # OpenRouter, next to `text`
    reasoning_content: Thought = None

    def classify(self) -> int:
        delta = self.delta
        if delta is not None:
            text = delta.content or delta.reasoning or delta.reasoning_content or delta.tool_calls
            if text and (text.__class__ is str or has_written(text)):
                return TOKEN  # nearly all are so
        part, text = self._choose_part(), self.text
        if part.has_text() or (self._has_own() and self._gather_text() != WrittenText()):
            return TOKEN
        empty = text is not None or part.content is not None or _thought_values(part) != _NO_THOUGHTS
        if self.finish_reason is not None:
            return ENDING if empty else CLOSING
        return MAYBE if empty and part.role is None else NOTHING

    def read_content(self) -> str:
        delta = self.delta
        if delta is not None and self.message is None and not self._has_own():
            text = delta.content
            if isinstance(text, str) and delta == Delta(delta.role, text):
                return text  # nearly all are so
        written = self._gather_text()
        return written.reasoning + written.answer

    def has_reasoning(self) -> bool:
        text = self._gather_text()
        return bool(text.reasoning) and not text.answer

    def has_visible_text(self) -> bool:
        part = self.delta if self.message is None else self._choose_part()
        if part is not None and part.content and part.content.__class__ is str:
            return True  # nearly all are so
        if not self.text and (part is None or not any(_answer_values(part))):
            return False  # quick, for reasoning in many messages
        return bool(self._gather_text().answer)

    def is_repeat(self) -> bool:
        return self.message is not None and self._choose_part() is self.message and not self._has_own()

    def _choose_part(self) -> Delta:
        """Return the delta if it has text or there is no message; else the message."""
        delta, message = self.delta, self.message
        if message is None or (delta is not None and delta.has_text()):
            return delta or _NO_DELTA
        return message

    def _has_own(self) -> bool:
        return bool(self.text or self.reasoning or self.reasoning_content)

    def _gather_text(self) -> WrittenText:
        """Collect all text in the choice's own fields, then that in its delta or message."""
        text = self._choose_part().gather_text()
        if not self._has_own():
            return text
        own = read_written(self.text)
        thought = read_written(self.reasoning or self.reasoning_content, True).reasoning
        return WrittenText(own.answer + text.answer, thought + own.reasoning + text.reasoning)


class CompletionChoice(TextChoice, gc=False):
    """A choice of `/v1/completions`."""

    def classify(self) -> int:
        text = self.text
        if text and text.__class__ is str:
            return TOKEN
        if self.delta is None and self.message is None and not self._has_own():
            return MAYBE if self.finish_reason is None else ENDING  # some servers leave an empty text out
        return super().classify()

    def read_content(self) -> str:
        text = self.text
        only_text = CompletionChoice(self.index, self.finish_reason, self.token_ids, text)
        return text if isinstance(text, str) and self == only_text else super().read_content()

    def has_visible_text(self) -> bool:
        text = self.text
        return bool(text and text.__class__ is str) or super().has_visible_text()


class CompletionMessage(Message, gc=False):
    """A message of `/v1/completions`."""

    choices: list[CompletionChoice] | None = None


class ChatChoice(TextChoice, gc=False):
    """A choice of `/v1/chat/completions`."""


class ChatMessage(Message, gc=False):
    """A message of `/v1/chat/completions`."""

    choices: list[ChatChoice] | None = None


class TypicalMessages(Sequence[Message]):
    """The messages of a stream, of which only the `parsed` ones differ from `typical` in more than text."""

    __slots__ = ("_every", "parsed", "typical")

    def __init__(self, typical: Message, parsed: dict[int, Message], count: int) -> None:
        self.typical, self.parsed = typical, parsed
        self._every = range(count)

    def __len__(self) -> int:
        return len(self._every)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[i] for i in self._every[at]]
        return self.parsed.get(self._every[at], self.typical)


class StreamSummary(msgspec.Struct, frozen=True):
    """Kinds, usage and errors of a stream's messages, up to the first that reports an error."""

    kinds: bytearray  # what each message carries by itself: TOKEN, MAYBE, …
    finish_reason: str  # the last one; one of FAILED_ENDS where any choice has it
    failed_end: str  # why that makes the answer a failure; "" if it does not
    usage: Usage | None  # the last one
    usage_at: list[int]  # messages with choices that bring usage along
    own_usage: bool  # the last usage came on a message of its own: it is of the whole answer
    ids: bool  # some message lists its token ids
    remarks: list[int]  # messages without choices: `read_remark` reads them
    fault: str | None

    def drop_usage(self) -> StreamSummary:
        """Return the summary without its usage, once that is known to be impossible."""
        return replace(self, usage=None, usage_at=[], own_usage=False)


def summarize(messages: Sequence[Message], lines: bytes | bytearray = b"") -> StreamSummary:
    """Summarize messages up to the first error, also in one without choices; `lines`: their JSON, one a line.

    A last message that holds the whole answer again carries no token if others do.
    """
    kinds = bytearray([TOKEN]) * len(messages)
    reason, why, fault, usage, own_usage, ids = "", "", None, None, False, False
    usage_at: list[int] = []
    remarks: list[int] = []
    repeated: list[int] = []
    # The others carry text alone.
    parsed = messages.parsed.items() if isinstance(messages, TypicalMessages) else enumerate(messages)
    for at, message in parsed:
        choices = message.choices
        if message.error is not None:
            fault = message.read_fault()
            if fault is not None:
                del kinds[at:]
                break
        if choices is None:
            remarks.append(at)
        # Gateways write a usage without tokens before they know them.
        if (found := message.usage) is not None and (found.prompt_tokens or found.completion_tokens):
            usage, own_usage = found, not choices
            if choices:
                usage_at.append(at)
        kind = NOTHING
        for choice in choices or ():
            kind = max(kind, choice.classify()) if kind else choice.classify()
            ids = ids or choice.token_ids is not None
            if choice.finish_reason:
                if reason not in FAILED_ENDS:
                    reason, why = choice.finish_reason, message.read_abort_reason()
                if choice.is_repeat():
                    repeated.append(at)
        kinds[at] = kind
    if repeated and kinds.count(TOKEN) > len(repeated):
        for at in repeated:
            kinds[at] = CLOSING
    if remarks and lines:
        written = [json for json in bytes(lines).split(b"\n") if json.strip()]
        for at in remarks:
            if (error := read_remark(written[at])) is not None:
                return replace(summarize(messages[:at]), fault=error)
    meaning = FAILED_ENDS.get(reason, "")
    failed_end = meaning and f"finish_reason {reason}: {why or meaning}"
    return StreamSummary(kinds, reason, failed_end, usage, usage_at, own_usage, ids, remarks, fault)


class Dialect(msgspec.Struct, frozen=True):
    """One API: its path, the fields of its requests, and the parser of its messages."""

    path: str
    limit_field: str = "max_tokens"  # of its requests: the longest answer
    cumulative: ClassVar[bool] = False  # a message repeats those before it
    chat: ClassVar[bool] = False  # takes messages by role, around which the server puts its chat template
    lacks: ClassVar[frozenset[str]] = frozenset()  # of vLLM's sampling names: it has no such field
    keeps_history: ClassVar[bool] = False  # the server keeps a session's: a turn sends what is new in it
    history_needs: ClassVar[str] = ""  # what servers must be started with for that
    needs_limit: ClassVar[bool] = False  # refuses a request without a limit to its answer
    prompt_count: ClassVar[str] = "usage.prompt_tokens"  # where its answers count a prompt's tokens
    headers: ClassVar[Mapping[str, str]] = {}  # of each request, unless others are given

    def make_request(self, model: str, prompt: list[int] | str, output_tokens: int) -> dict[str, Any]:
        """Make a request's own fields; raises UsageError if the API cannot take such a prompt."""
        raise NotImplementedError

    def make_fields(self, sampling: dict[str, Any], stream: bool, running_usage: bool) -> dict[str, Any]:
        """Make the fields that all requests share; sampling is spelled as in vLLM."""
        raise NotImplementedError

    def convert_chat(self, body: dict[str, Any]) -> dict[str, Any]:
        """Convert a body of OpenAI's chat API to one of this API, if that takes messages by role."""
        return body

    def add_images(self, request: dict[str, Any], urls: Sequence[bytes]) -> dict[str, Any]:
        """Return a request with images after its last message's content; JSON escapes nothing in `urls`."""
        raise NotImplementedError

    def keep_history(self) -> Dialect:
        """Return this API with the history of sessions on the server; raises UsageError if it has none."""
        raise UsageError(
            f"--assistant server has the server keep the history, and {self.path} sends it with each turn: "
            "use --backend openai-responses, or --assistant live"
        )

    def read_state(self, lines: bytes | bytearray) -> dict[str, Any] | None:
        """Return what the next turn needs of an answer whose history the server keeps; None without it."""
        raise NotImplementedError

    def continue_request(self, request: dict[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request with what is new in its turn alone, after the answer of this state."""
        raise NotImplementedError

    def fit_engine(self, engine: str) -> Dialect:
        """Return this API as an engine, by its name, serves it."""
        return self

    def list_notes(self) -> Iterator[str]:
        """Yield what an engine does not do in this API as elsewhere, for the report."""
        yield from ()

    def rename_limit(self, field: str) -> Dialect:
        """Return this API with another field name for the length of an answer, if it has a choice."""
        return self

    def read_messages(self, lines: bytes | bytearray) -> Sequence[Message]:
        """Parse events, one JSON object per line; raises DecodeError or UnicodeDecodeError."""
        raise NotImplementedError

    def has_token(self, tail: bytes) -> bool:
        """Whether a complete message in bytes cut out of a response may carry a token."""
        return any(kind >= ENDING for kind in self._classify_lines(tail))

    def count_token_messages(self, piece: bytes) -> int:
        """Count the complete messages with text in bytes cut out of a response."""
        return sum(kind == TOKEN for kind in self._classify_lines(piece))

    def _classify_lines(self, cut: bytes) -> Iterator[int]:
        """Yield what each choice in bytes cut out of a response carries, also of data in several lines."""
        begun = b""
        for line in _CHUNK_SEAM.sub(b"", cut).splitlines():  # without chunk sizes
            if not line.startswith(b"data:"):
                begun = b""
                continue
            for data in (line[5:], begun + line[5:]) if begun else (line[5:],):
                try:
                    (message,) = self.read_messages(data)
                    kinds = [choice.classify() for choice in message.choices or ()]
                except (*NOT_JSON, ValueError):
                    continue  # cut at either end, `[DONE]`, or not ours to judge while bytes arrive
                yield from kinds
                begun = b""
                break
            else:
                begun = (begun + line[5:])[-_LONGEST_BEGUN:]


def check_text(prompt: list[int] | str, api: str) -> str:
    """Return a prompt that is text; raises UsageError for token ids, which the API does not take."""
    if isinstance(prompt, str):
        return prompt
    raise UsageError(f"{api} takes text, not token ids: use --prompt-format words, or /v1/completions")


def add_parts(messages: Sequence[dict[str, Any]], parts: list[Any], text: str = "text") -> list[Any]:
    """Return messages with parts after the content of the last one, whose text is a part of type `text`."""
    *before, last = messages
    content = last.get("content")
    own = [{"type": text, "text": content}] if isinstance(content, str) else content or ()
    return [*before, {**last, "content": [*own, *parts]}]


def quote_plain(text: bytes) -> msgspec.Raw:
    """Put quotes around a text that has no character which JSON escapes: cheap JSON for a long one."""
    return msgspec.Raw(b'"' + text + b'"')


_LONGEST_BEGUN = 1 << 16  # bytes of an event over several lines that are kept


class _OpenAI(Dialect, frozen=True):
    """The base of OpenAI's two APIs."""

    _messages: ClassVar[msgspec.json.Decoder[Any]]

    def rename_limit(self, field: str) -> Dialect:
        return replace(self, limit_field=field)

    def make_fields(self, sampling: dict[str, Any], stream: bool, running_usage: bool) -> dict[str, Any]:
        options = {"include_usage": True, **({"continuous_usage_stats": True} if running_usage else {})}
        return {**sampling, "stream": stream, **({"stream_options": options} if stream else {})}

    def read_messages(self, lines: bytes | bytearray) -> Sequence[Message]:
        return self._messages.decode_lines(lines)


class Completions(_OpenAI, frozen=True):
    """`/v1/completions`: token ids or text in, text out."""

    path: str = "/v1/completions"
    _messages: ClassVar = msgspec.json.Decoder(CompletionMessage)

    def make_request(self, model: str, prompt: list[int] | str, output_tokens: int) -> dict[str, Any]:
        return {"model": model, "prompt": prompt, self.limit_field: output_tokens}


class Chat(_OpenAI, frozen=True):
    """`/v1/chat/completions`: text in, content, reasoning and tool calls out."""

    path: str = "/v1/chat/completions"
    chat: ClassVar[bool] = True
    limit_field: str = "max_completion_tokens"  # `transformers serve` knows only `max_tokens`
    _messages: ClassVar = msgspec.json.Decoder(ChatMessage)

    def make_request(self, model: str, prompt: list[int] | str, output_tokens: int) -> dict[str, Any]:
        messages = [{"role": "user", "content": check_text(prompt, "the chat API")}]
        return {"model": model, "messages": messages, self.limit_field: output_tokens}

    def add_images(self, request: dict[str, Any], urls: Sequence[bytes]) -> dict[str, Any]:
        messages = request["messages"]
        if isinstance(messages, msgspec.Raw):
            messages = msgspec.json.decode(messages, type=list[dict[str, Any]])
        parts = [{"type": "image_url", "image_url": {"url": quote_plain(url)}} for url in urls]
        return {**request, "messages": add_parts(messages, parts)}


DIALECTS: dict[str, Dialect] = {"completions": Completions(), "chat": Chat()}
