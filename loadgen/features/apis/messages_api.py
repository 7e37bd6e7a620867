"""Messages API: Anthropic's `/v1/messages`: its requests, also those made of chats, and its events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace

from loadgen.base.errors import UsageError
from loadgen.base.untrusted import NOT_JSON, read_list, read_mapping
from loadgen.wire.openai import (
    ANSWER_LIMITS,
    MOST,
    SYSTEM_ROLES,
    ChatChoice,
    ChatMessage,
    Count,
    Delta,
    Dialect,
    Error,
    Message,
    PromptDetails,
    Usage,
    add_parts,
    check_text,
    quote_plain,
)

# OpenAI's finish reasons for Anthropic's; others keep their name.
_REASONS = {
    **dict.fromkeys(("max_tokens", "model_context_window_exceeded"), "length"),
    **dict.fromkeys(("end_turn", "stop_sequence", "tool_use", "pause_turn"), "stop"),
    "refusal": "content_filter",
}
_WRITTEN = ("text", "thinking", "tool_use", "server_tool_use")  # blocks that the model wrote
_NAMED = ("tool_use", "server_tool_use")  # of these the name comes as the block begins
_SGLANG = "SGLang"
_PENALTIES = ("frequency_penalty", "presence_penalty", "repetition_penalty")
_LACKS = frozenset(("ignore_eos", "min_tokens", "min_p", "logprobs", *_PENALTIES))
_VERSION = {"anthropic-version": "2023-06-01"}  # the only one of this API


class MessageUsage(msgspec.Struct, gc=False):
    """The `usage` of an answer; `input_tokens` are those of the prompt that were neither read nor cached."""

    input_tokens: Count | None = None
    cache_read_input_tokens: Count | None = None
    cache_creation_input_tokens: Count | None = None
    output_tokens: Count | None = None  # so far

    @property
    def prompt_tokens(self) -> int | None:
        """All tokens of the prompt; None if they are not reported, or are more than can be."""
        parts = (self.input_tokens, self.cache_read_input_tokens, self.cache_creation_input_tokens)
        total = sum(filter(None, parts))
        return total if self.input_tokens is not None and total <= MOST else None

    def make_usage(self, began: MessageUsage | None, whole: bool = True) -> Usage:
        """Make OpenAI's usage; `began` are the counts at the stream's begin, `whole`: the answer is over.

        The prompt is counted by one of both, the later if it has a count: vLLM names what was cached at the
        end alone, and then takes it out of `input_tokens`; SGLang and llama.cpp count at the begin alone.
        """
        prompt = self if self.prompt_tokens or began is None else began
        details = PromptDetails(prompt.cache_read_input_tokens)
        return Usage(prompt.prompt_tokens, self.output_tokens if whole else None, details)


class Block(msgspec.Struct, gc=False):
    """A block of content as it begins, what an event adds to one, or how the message ended."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    name: str | None = None
    stop_reason: str | None = None

    def make_delta(self) -> Delta:
        """Make OpenAI's delta of added text, reasoning or arguments of a call; an empty one of others."""
        if self.type == "text_delta":
            return Delta(content=self.text)
        if self.type == "thinking_delta":
            return Delta(reasoning=self.thinking)
        return Delta(tool_calls=self.partial_json if self.type == "input_json_delta" else None)

    def make_beginning(self) -> Delta | None:
        """Make the delta of a block that begins with a text or a tool's name; None: with neither."""
        if self.type in _NAMED:
            return Delta(tool_calls=self.name)
        return Delta(content=self.text, reasoning=self.thinking) if self.text or self.thinking else None


class BegunMessage(msgspec.Struct, gc=False):
    """The `message` with which a stream begins: what is counted of it so far."""

    usage: MessageUsage | None = None


class MessageEvent(msgspec.Struct, gc=False):
    """An event of a stream, or a whole answer, by its `type`."""

    type: str = ""
    delta: Block | None = None
    content_block: Block | None = None
    usage: MessageUsage | None = None
    error: Error = None
    message: msgspec.Raw = msgspec.Raw()  # of `message_start`; other servers may mean anything by it
    content: Any = None  # of a whole answer
    stop_reason: str | None = None

    def make_choices(self) -> list[ChatChoice] | None:
        """Make the choice that holds its text or finish reason; [] if it has none, None if it has no type."""
        match self.type:
            case "content_block_delta":
                return [] if self.delta is None else [ChatChoice(delta=self.delta.make_delta())]
            case "content_block_start":
                began = None if self.content_block is None else self.content_block.make_beginning()
                return [] if began is None else [ChatChoice(delta=began)]
            case "message_start":
                return [ChatChoice(delta=Delta(role="assistant"))]
            case "message_delta":
                reason = None if self.delta is None else self.delta.stop_reason
                return [] if reason is None else [ChatChoice(finish_reason=_translate_reason(reason))]
            case "message":
                blocks = (block for block in read_list(self.content) if isinstance(block, dict))
                # The model wrote no results of a server's tools.
                wrote = [block for block in blocks if block.get("type") in _WRITTEN]
                written = Delta(role="assistant", content=wrote)
                return [ChatChoice(finish_reason=_translate_reason(self.stop_reason), message=written)]
            case "":
                return None
        return []  # a ping, an end, or what the API may add


def _translate_reason(reason: str | None) -> str | None:
    return None if reason is None else _REASONS.get(reason, reason)


class Messages(Dialect, frozen=True):
    """`/v1/messages`: messages by role in; text, thinking and tool calls out."""

    path: str = "/v1/messages"
    names_hits_alone: bool = False  # cached tokens are named only in answers that have some
    chat: ClassVar[bool] = True
    needs_limit: ClassVar[bool] = True
    prompt_count: ClassVar[str] = "usage.input_tokens"
    lacks: ClassVar[frozenset[str]] = _LACKS
    headers: ClassVar[Mapping[str, str]] = _VERSION
    _events: ClassVar = msgspec.json.Decoder(MessageEvent)
    _begun: ClassVar = msgspec.json.Decoder(BegunMessage)

    def make_request(self, model: str, prompt: list[int] | str, output_tokens: int) -> dict[str, Any]:
        messages = [{"role": "user", "content": check_text(prompt, self.path)}]
        return {"model": model, "max_tokens": output_tokens, "messages": messages}

    def make_fields(self, sampling: dict[str, Any], stream: bool, running_usage: bool) -> dict[str, Any]:
        """Make the shared fields; raises UsageError for a running usage, which this API does not have."""
        if running_usage:
            raise UsageError(f"{self.path} counts tokens at the end alone: leave out --continuous-usage")
        return {**sampling, "stream": stream}

    def fit_engine(self, engine: str) -> Messages:
        return replace(self, names_hits_alone=engine == _SGLANG)

    def list_notes(self) -> Iterator[str]:
        if self.names_hits_alone:
            yield (
                f"in {self.path} SGLang names cached tokens only in responses that have some "
                "(--enable-cache-report): the cached share leaves the others out"
            )

    def add_images(self, request: dict[str, Any], urls: Sequence[bytes]) -> dict[str, Any]:
        blocks = []
        for url in urls:
            source: dict[str, Any] = {"type": "url", "url": quote_plain(url)}
            if url.startswith(b"data:"):  # its data, without a copy as text
                kind, _, data = url.removeprefix(b"data:").partition(b";base64,")
                source = {"type": "base64", "media_type": kind.decode(), "data": quote_plain(data)}
            blocks.append({"type": "image", "source": source})
        return {**request, "messages": add_parts(request["messages"], blocks)}

    def convert_chat(self, body: dict[str, Any]) -> dict[str, Any]:
        return convert_body(body)

    def read_messages(self, lines: bytes | bytearray) -> Sequence[Message]:
        """Parse events as messages of chat; the usage at the end has the prompt's count of the begin."""
        began: MessageUsage | None = None
        messages = []
        for event in self._events.decode_lines(lines):
            usage = None
            if event.type == "message_start":
                began = self._begun.decode(event.message).usage
                usage = None if began is None else began.make_usage(None, whole=False)
            elif event.usage is not None:
                usage = event.usage.make_usage(began)
            messages.append(ChatMessage(choices=event.make_choices(), usage=usage, error=event.error))
        return messages


_SAME = ("model", "temperature", "top_p", "top_k", "metadata", "chat_template_kwargs", "thinking")


def convert_body(body: dict[str, Any]) -> dict[str, Any]:
    """Convert a chat body; fields that have no counterpart are left out, and so is earlier reasoning.

    System messages become `system`, wherever they stand, and a tool's results blocks of a user's message.
    Reasoning of earlier turns is no part of the API's own prompts either.
    """
    chat: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(body))
    messages: list[dict[str, Any]] = chat.get("messages") or []
    converted = {key: chat[key] for key in _SAME if chat.get(key) is not None}
    limit = next((chat[key] for key in ANSWER_LIMITS if chat.get(key) is not None), None)
    if limit is not None:
        converted["max_tokens"] = limit
    system = list[str]()
    for message in messages:
        if message.get("role") in SYSTEM_ROLES:
            content = message.get("content")
            parts = content if isinstance(content, list) else [{"text": content}]
            system += [text for part in parts if isinstance(text := read_mapping(part).get("text"), str)]
    if instructions := "\n\n".join(system):
        converted["system"] = instructions
    converted["messages"] = list(_convert_messages(messages))
    if (stop := chat.get("stop")) is not None:
        converted["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    if tools := chat.get("tools"):
        converted["tools"] = [_convert_tool(tool) for tool in tools]
    choice, kinds = chat.get("tool_choice"), {"auto": "auto", "required": "any", "none": "none"}
    if isinstance(choice, dict):
        named = read_mapping(choice.get("function")).get("name")
        converted["tool_choice"] = {"type": "tool", "name": named}
    elif choice in kinds:
        converted["tool_choice"] = {"type": kinds[choice]}
    return converted


def _convert_messages(messages: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield messages of users and assistants; results of tools that follow one another are one message."""
    results: list[dict[str, Any]] = []
    for message in messages:
        role = message.get("role")
        if role == "tool":
            content = _convert_content(message.get("content"))
            result = {"type": "tool_result", "tool_use_id": message.get("tool_call_id") or ""}
            results.append({**result, "content": content})
            continue
        if results:
            yield {"role": "user", "content": results}
            results = []
        if role not in SYSTEM_ROLES:
            yield {
                "role": role,
                "content": _convert_content(message.get("content"), message.get("tool_calls")),
            }
    if results:
        yield {"role": "user", "content": results}


def _convert_content(content: Any, calls: Any = None) -> str | list[dict[str, Any]]:
    """Convert a content and tool calls to blocks; text without calls stays text, and nothing is "" too."""
    if isinstance(content, str) and not calls:
        return content
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []
    return [*map(_convert_part, parts), *map(_convert_call, calls or ())] or ""


def _convert_part(part: Any) -> dict[str, Any]:
    """Convert a part: an image by its URL, or the data in it; any other is kept."""
    if read_mapping(part).get("type") != "image_url":
        return {"type": "text", "text": part} if isinstance(part, str) else part
    image = part["image_url"]
    url = str(image["url"] if isinstance(image, dict) else image)
    if not url.startswith("data:"):
        return {"type": "image", "source": {"type": "url", "url": url}}
    kind, _, data = url.removeprefix("data:").partition(",")
    source = {"type": "base64", "media_type": kind.partition(";")[0], "data": data}
    return {"type": "image", "source": source}


def _convert_call(call: dict[str, Any]) -> dict[str, Any]:
    """Convert a tool call, whose arguments become an object; what is none is its only argument."""
    function = read_mapping(call.get("function"))
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with suppress(*NOT_JSON):
            arguments = msgspec.json.decode(arguments)
    given = arguments if isinstance(arguments, dict) else {"arguments": arguments} if arguments else {}
    return {"type": "tool_use", "id": call.get("id") or "", "name": function.get("name"), "input": given}


def _convert_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """Convert the definition of a function; one of Anthropic's own form is kept."""
    function = tool.get("function")
    if not isinstance(function, dict):
        return tool
    named = {key: function[key] for key in ("name", "description") if function.get(key) is not None}
    return {**named, "input_schema": function.get("parameters") or {"type": "object"}}


API = Messages
