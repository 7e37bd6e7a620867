"""Responses API: `/v1/responses`: its requests, also those made of chats, and its events and answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec
from msgspec.structs import replace

from loadgen.base.errors import UsageError
from loadgen.base.untrusted import read_mapping
from loadgen.wire.openai import (
    ANSWER_LIMITS,
    REASONING_FIELDS,
    SYSTEM_ROLES,
    TOKEN,
    ChatChoice,
    ChatMessage,
    CompletionDetails,
    Count,
    Delta,
    Dialect,
    Error,
    ErrorObject,
    Message,
    PromptDetails,
    Usage,
    add_parts,
    check_text,
    quote_plain,
)

# Events with what the model wrote, by the field of a chat's delta. Those that end in `.done` repeat them.
_DELTAS: Final = {
    "response.output_text.delta": "content",
    "response.refusal.delta": "refusal",
    "response.reasoning_text.delta": "reasoning",
    "response.reasoning_summary_text.delta": "reasoning",
    "response.function_call_arguments.delta": "tool_calls",
    "response.custom_tool_call_input.delta": "tool_calls",
    "response.mcp_call_arguments.delta": "tool_calls",
    "response.code_interpreter_call_code.delta": "tool_calls",
}
_ADDED: Final = "response.output_item.added"
# The last event, which has the whole answer. vLLM's is `completed` too where the answer is incomplete.
_LAST: Final = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")
_ENDS: Final = {"completed": "stop", "cancelled": "cancelled"}  # by status, as chat's finish reasons
_INCOMPLETE: Final = {"max_output_tokens": "length"}
_PARTS: Final = {"message": "content", "reasoning": "reasoning"}  # kinds of items; others are calls of tools
_OTHERS: Final = ("response.", "keepalive", "ping")  # types begin so that say nothing of tokens
_UNREAD: Final = frozenset(("min_tokens",))  # of vLLM's sampling names, by every engine in this API
_SGLANG: Final = "SGLang"
_SGLANGS_UNREAD: Final = _UNREAD | {"ignore_eos"}
_SGLANGS_SPARE: Final = 2  # tokens that it generates less than it is asked for: it keeps room for BOS and EOS


class ResponseUsage(msgspec.Struct, gc=False):
    """The token counts in an answer's `usage`."""

    input_tokens: Count | None = None
    output_tokens: Count | None = None
    input_tokens_details: PromptDetails | None = None
    output_tokens_details: CompletionDetails | None = None
    total_tokens: Any = None

    def convert(self) -> Usage:
        """Return the counts under the chat API's names."""
        prompt, answer = self.input_tokens_details, self.output_tokens_details
        return Usage(self.input_tokens, self.output_tokens, prompt, answer, self.total_tokens)


class Incomplete(msgspec.Struct, gc=False):
    """Why an answer is not complete."""

    reason: str | None = None


class Item(msgspec.Struct, gc=False):
    """A part of an answer: a message, reasoning, or a call of a tool."""

    type: str = ""
    content: Any = None  # of messages and reasoning
    summary: Any = None  # of reasoning
    name: str | None = None  # of a tool, as what follows
    arguments: Any = None
    input: Any = None

    def convert(self) -> tuple[str, Any]:
        """Return the field of a chat's delta that the item belongs to, and its value there."""
        field = _PARTS.get(self.type, "tool_calls")
        if field == "tool_calls":
            text = self.arguments or self.input or ""
            return field, [{"function": {"name": self.name or "", "arguments": text}}]
        return field, self.content or self.summary


class ResponseObject(msgspec.Struct, gc=False):
    """A whole answer, in the last event of a stream too; `output` is not parsed before it is needed."""

    id: str | None = None
    status: str | None = None
    output: msgspec.Raw = msgspec.Raw()
    usage: ResponseUsage | None = None
    error: Error = None
    incomplete_details: Incomplete | None = None
    metrics: msgspec.Raw = msgspec.Raw()  # vLLM's times of the request

    def find_end(self) -> str:
        """Return the finish reason as chat has it: length, stop, cancelled, or why it is incomplete."""
        if self.status == "incomplete":
            why = None if self.incomplete_details is None else self.incomplete_details.reason
            return _INCOMPLETE.get(why or "", why or "incomplete")
        return _ENDS.get(self.status or "completed", self.status or "")

    def convert(self, repeats: bool) -> ChatMessage:
        """Return chat's last message, without text if `repeats` (deltas had it); a failure is an error."""
        if self.error or self.status == "failed":
            return ChatMessage(choices=[], error=self.error or ErrorObject("the response failed"))
        choice = ChatChoice(finish_reason=self.find_end())
        if not repeats:
            items = _ITEMS.decode(self.output) if bytes(self.output) else []
            found: dict[str, list[Any]] = {}
            for field, value in (item.convert() for item in items or ()):
                found.setdefault(field, []).append(value)
            choice.message = Delta(role="assistant", **found)
        usage = None if self.usage is None else self.usage.convert()
        return ChatMessage(choices=[choice], usage=usage, metrics=self.metrics)


class Event(ResponseObject, gc=False):
    """An event of a stream by its type, or a whole answer, which is a `response` object."""

    type: str = ""
    object: str = ""
    delta: str | None = None
    item: msgspec.Raw = msgspec.Raw()
    response: msgspec.Raw = msgspec.Raw()  # unread before the last event
    timings: msgspec.Raw = msgspec.Raw()  # llama.cpp's, in the event of its last response
    code: Any = None  # of an error
    message: Any = None

    def convert(self, repeats: bool) -> ChatMessage:
        """Return the event as a chat's message; without choices if it is none of this API.

        `repeats`: earlier events have the text of the last one.
        """
        field = _DELTAS.get(self.type)
        if field is not None:
            return _make_message(field, self.delta)
        if self.type in _LAST:
            last = _RESPONSE.decode(self.response).convert(repeats)
            last.timings = self.timings
            return last
        if self.type == _ADDED:
            item = _ITEM.decode(self.item) if bytes(self.item) else None
            if item is None or not item.name:  # only of a tool that is called more is known at its beginning
                return ChatMessage(choices=[])
            return _make_message(*item.convert())
        if self.type.startswith(_OTHERS):
            return ChatMessage(choices=[])
        if self.object == "response":
            return super().convert(repeats)
        if self.error is not None:
            return ChatMessage(choices=[], error=self.error)
        if self.type == "error":
            error = ErrorObject(_read_text(self.message), _read_text(self.code))
            return ChatMessage(choices=[], error=error)
        return ChatMessage()


_RESPONSE: Final = msgspec.json.Decoder(ResponseObject)
_ITEM: Final = msgspec.json.Decoder(Item | None)
_ITEMS: Final = msgspec.json.Decoder(list[Item] | None)


class Responses(Dialect, frozen=True):
    """`/v1/responses`: text or items in; text, reasoning and calls of tools out, by events with types."""

    path: str = "/v1/responses"
    limit_field: str = "max_output_tokens"
    chat: ClassVar[bool] = True
    prompt_count: ClassVar[str] = "usage.input_tokens"
    history_needs: ClassVar[str] = (
        "start vLLM with VLLM_ENABLE_RESPONSES_API_STORE=1, SGLang with --enable-response-store"
    )
    lacks: frozenset[str] = _UNREAD  # type: ignore[misc]
    keeps_history: bool = False  # type: ignore[misc]
    spare_tokens: int = 0  # that an engine generates less than it is asked for: they are asked for too
    _events: ClassVar = msgspec.json.Decoder(Event)

    def make_request(self, model: str, prompt: list[int] | str, output_tokens: int) -> dict[str, Any]:
        text = check_text(prompt, self.path)
        return {"model": model, "input": text, self.limit_field: output_tokens + self.spare_tokens}

    def make_fields(self, sampling: dict[str, Any], stream: bool, running_usage: bool) -> dict[str, Any]:
        """Make the shared fields; log-probabilities have other names. Raises UsageError for running usage."""
        if running_usage:
            raise UsageError(
                "--continuous-usage: /v1/responses has usage in its last event alone: leave it out"
            )
        fields = dict(sampling)
        if (top := fields.pop("logprobs", None)) is not None:
            fields |= {"top_logprobs": top, "include": ["message.output_text.logprobs"]}
        return {**fields, "stream": stream, "store": self.keeps_history}

    def convert_chat(self, body: dict[str, Any]) -> dict[str, Any]:
        request = convert_body(body)
        if self.limit_field in request:
            request[self.limit_field] += self.spare_tokens
        return request

    def add_images(self, request: dict[str, Any], urls: Sequence[bytes]) -> dict[str, Any]:
        """Return a request with images in its last item; in one of its own after the result of a tool."""
        given = request["input"]
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        items = items if "role" in items[-1] else [*items, {"role": "user"}]
        parts = [{"type": "input_image", "image_url": quote_plain(url)} for url in urls]
        return {**request, "input": add_parts(items, parts, "input_text")}

    def fit_engine(self, engine: str) -> Responses:
        return (
            replace(self, lacks=_SGLANGS_UNREAD, spare_tokens=_SGLANGS_SPARE) if engine == _SGLANG else self
        )

    def list_notes(self) -> Iterator[str]:
        if self.spare_tokens:
            yield (
                f"{self.limit_field} is the planned length and {self.spare_tokens}: {_SGLANG} generates "
                f"{self.spare_tokens} tokens fewer in {self.path}"
            )

    def keep_history(self) -> Responses:
        return replace(self, keeps_history=True)

    def read_state(self, lines: bytes | bytearray) -> dict[str, Any] | None:
        """Return the answer's id, by which the next turn names it; None without one."""
        for event in reversed(self._events.decode_lines(lines)):
            inner = _RESPONSE.decode(event.response) if event.type in _LAST else event
            if inner.id:
                return {"id": inner.id}
        return None

    def continue_request(self, request: dict[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the request with the items after the last answer, and the id of that."""
        return {**request, "input": select_new_items(request["input"]), "previous_response_id": state["id"]}

    def read_messages(self, lines: bytes | bytearray) -> Sequence[Message]:
        """Decode events to chat's messages; raises msgspec's DecodeError.

        The last one has the whole text only where no event before it among `lines` has any.
        """
        messages: list[Message] = []
        repeats = False
        for event in self._events.decode_lines(lines):
            message = event.convert(repeats)
            repeats = repeats or any(choice.classify() == TOKEN for choice in message.choices or ())
            messages.append(message)
        return messages


def _make_message(field: str, value: Any) -> ChatMessage:
    """Make a message with a value in one field of its delta, in a form in which text of calls is found."""
    if field == "content":
        return ChatMessage(choices=[ChatChoice(delta=Delta(content=value))])
    if field == "tool_calls" and not isinstance(value, list):
        value = [{"function": {"arguments": value}}]
    return ChatMessage(choices=[ChatChoice(delta=Delta(**{field: value}))])


def _read_text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


# That API words these in other fields, or not at all.
_OTHERWISE: Final = (
    *ANSWER_LIMITS,
    "messages",
    "tools",
    "tool_choice",
    "response_format",
    "reasoning_effort",
    "stream_options",
    "logprobs",
)
# Items that an answer consists of: what follows the last of them is new in its turn.
_ANSWERED: Final = ("reasoning", "function_call")


def convert_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a chat body: messages to items, a system prompt before them to `instructions`, tools, limits.

    A single message of a user is text. Fields of the same name stay; parts of a content that chat does not
    have are passed on.
    """
    chat: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(body))  # values may be JSON already
    messages = chat.get("messages") or []
    request = {name: value for name, value in chat.items() if name not in _OTHERWISE}
    if messages and messages[0].get("role") in SYSTEM_ROLES and isinstance(messages[0].get("content"), str):
        request["instructions"] = messages[0]["content"]
        messages = messages[1:]
    items = [item for message in messages for item in _list_items(message)]
    first = items[0] if len(items) == 1 else {}
    is_text = first.get("role") == "user" and isinstance(first.get("content"), str)
    request["input"] = first["content"] if is_text else items
    for limit in ANSWER_LIMITS:
        if chat.get(limit) is not None:
            request["max_output_tokens"] = chat[limit]
    if chat.get("tools"):
        request["tools"] = [_lift(tool, "function") for tool in chat["tools"]]
    if chat.get("tool_choice") is not None:
        request["tool_choice"] = _lift(chat["tool_choice"], "function")
    if chat.get("response_format") is not None:
        request["text"] = {"format": _lift(chat["response_format"], "json_schema")}
    if chat.get("reasoning_effort") is not None:
        request["reasoning"] = {"effort": chat["reasoning_effort"]}
    if chat.get("logprobs"):
        request["include"] = ["message.output_text.logprobs"]
    return request


def select_new_items(given: Any) -> Any:
    """Return what of `input` follows the last item of an answer; all if there is none, or if it is text."""
    if not isinstance(given, list):
        return given
    answers = [
        at
        for at, item in enumerate(given)
        if item.get("role") == "assistant" or item.get("type") in _ANSWERED
    ]
    return given[answers[-1] + 1 :] if answers else given


def _list_items(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the items of a message: reasoning, its content, calls of tools; or the result of a call."""
    role, content = message.get("role"), message.get("content")
    if role == "tool":
        yield {
            "type": "function_call_output",
            "call_id": message.get("tool_call_id"),
            "output": _convert(content),
        }
        return
    thought = next((message[key] for key in REASONING_FIELDS if message.get(key)), None)
    if isinstance(thought, str):
        yield {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": thought}]}
    calls = message.get("tool_calls") or []
    if content or not (calls or thought):
        yield _make_answer(content) if role == "assistant" else {"role": role, "content": _convert(content)}
    for call in calls:
        function = read_mapping(call.get("function"))
        yield {
            "type": "function_call",
            "call_id": call.get("id"),
            "name": function.get("name"),
            "arguments": function.get("arguments") or "",
        }


def _make_answer(content: Any) -> dict[str, Any]:
    """Make the item of an answer in the form in which servers write them: llama.cpp takes no other."""
    texts: list[Any] = []
    for part in content if isinstance(content, list) else [{"type": "text", "text": content or ""}]:
        is_text = part.get("type") == "text"
        text: dict[str, Any] = {"type": "output_text", "text": part.get("text", ""), "annotations": []}
        texts.append(text if is_text else part)
    return {"type": "message", "role": "assistant", "content": texts}


def _convert(content: Any) -> Any:
    """Convert a content's parts: texts and images; others, and what is no list, stay; None is ""."""
    if not isinstance(content, list):
        return "" if content is None else content
    parts = []
    for part in content:
        if part.get("type") == "text":
            parts.append({**part, "type": "input_text"})
        elif part.get("type") == "image_url":
            image = part.get("image_url")
            image = {"url": image} if isinstance(image, str) else read_mapping(image)
            detail = {"detail": image["detail"]} if image.get("detail") else {}
            parts.append({"type": "input_image", "image_url": image.get("url"), **detail})
        else:
            parts.append(part)
    return parts


def _lift(value: Any, name: str) -> Any:
    """Return an object with its table `name` dissolved into its own fields; anything without it as it is."""
    if not isinstance(value, dict) or not isinstance(value.get(name), dict):
        return value
    return {**{key: own for key, own in value.items() if key != name}, **value[name]}


API = Responses
