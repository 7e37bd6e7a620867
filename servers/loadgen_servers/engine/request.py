"""A completions or chat request, parsed and checked as vLLM checks it."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import msgspec

from loadgen_servers.engine.messages import ResponseOptions
from loadgen_servers.engine.prefix_cache import block_hashes
from loadgen_servers.engine.scheduler import DraftedSteps, draw_steps

BYTES_PER_TOKEN = 4  # text is counted, not tokenized: its UTF-8 bytes / 4, rounded up
MESSAGE_BYTES = 20  # what a chat template puts around a message: start, role, newline, end, newline
GENERATION = b"assistant".ljust(12)  # and before the answer: start, role, newline
DEFAULT_COMPLETION_TOKENS = 16


class Part(msgspec.Struct):
    """A part of a chat message; only text counts."""

    text: str = ""


class ChatMessage(msgspec.Struct):
    """One chat message."""

    role: str
    content: str | list[Part] | None = None


class StreamOptions(msgspec.Struct):
    """The `stream_options` member."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Body(msgspec.Struct):
    """The members the engine uses; others are accepted and ignored, as vLLM does."""

    model: str | None = None
    prompt: str | list[int | list[int]] | None = None
    messages: list[ChatMessage] | None = None
    system: str | list[Part] | None = None  # of Anthropic's API
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int = 0
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    ignore_eos: bool = False
    return_token_ids: bool | None = False
    n: int | None = 1
    best_of: int | None = 1
    logprobs: int | bool | None = None
    cache_salt: str | None = None


class ServedModel(msgspec.Struct, frozen=True):
    """The model that the engine serves, and how often answers end early."""

    model: str
    max_model_len: int
    vocab_size: int = 151936
    early_eos: float = 0.0
    cached_details: bool = False  # whether usage reports cached prompt tokens
    request_metrics: bool = False  # whether it reports the request's own times
    hidden_reasoning: int = 0  # the first tokens of each output, which only usage shows
    role_at_once: bool = False  # whether a stream's role is sent before its prompt is computed
    acceptance: tuple[float, ...] = ()  # of each draft token, if those before it were accepted


@dataclass
class Refusal(Exception):
    """A request the engine will not serve, as an HTTP status and vLLM's error object."""

    status: str
    message: str
    kind: str = "BadRequestError"
    param: str | None = None
    in_stream: bool = False  # sent inside a 200 stream, where a streamed request fails that late

    def body(self) -> bytes:
        code = int(self.status.split()[0])
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": code}
        return msgspec.json.encode({"error": error})


class GenerationRequest(msgspec.Struct, frozen=True):
    """A request the engine will serve: `output_tokens` of at most `max_tokens`."""

    response: ResponseOptions
    max_tokens: int
    output_tokens: int
    finish_reason: str
    prompt: tuple[int, ...] | bytes  # its ids, or its text at BYTES_PER_TOKEN a token
    steps: DraftedSteps = DraftedSteps()
    salt: str = ""  # only prompts with the same one share blocks

    def blocks(self, size: int) -> tuple[int, ...]:
        """The identities of the prompt's full blocks of `size` tokens."""
        stride = size * BYTES_PER_TOKEN if isinstance(self.prompt, bytes) else size
        return block_hashes(self.prompt, stride, self.salt)


_BAD = "400 Bad Request"
_decoder = msgspec.json.Decoder(Body)


def parse(raw: bytes, chat: bool, served: ServedModel, limited: bool = False) -> GenerationRequest:
    """Decode and check one request body, which has a limit if `limited`; raises Refusal."""
    try:
        body = _decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise Refusal(_BAD, f"1 validation error: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refusal(_BAD, f"JSON decode error: {error}", "Bad Request", "body") from None
    if body.model and body.model != served.model:
        message = f"The model `{body.model}` does not exist. Valid aliases: {served.model}."
        raise Refusal("404 Not Found", message, "NotFoundError", "model")
    if (body.n or 1) != 1 or (body.best_of or 1) != 1:
        raise Refusal(_BAD, "this engine gives one response per request: n and best_of must be 1", param="n")
    if body.logprobs is not None and body.logprobs is not False:
        raise Refusal(_BAD, "this engine does not support logprobs", param="logprobs")
    if limited and body.max_tokens is None:
        raise Refusal(
            _BAD, "1 validation error: max_tokens: Field required", "Bad Request", "body.max_tokens"
        )
    prompt = _chat(body) if chat else _completion(body)
    ids = None if isinstance(prompt, bytes) else prompt
    prompt_tokens = len(prompt) if ids else len(prompt) // BYTES_PER_TOKEN
    max_tokens = _max_tokens(body, chat, prompt_tokens, served)
    if ids and not 0 <= min(ids) <= max(ids) < served.vocab_size:
        wrong = next(i for i in ids if not 0 <= i < served.vocab_size)
        raise Refusal(_BAD, f"Token id {wrong} is out of vocabulary", in_stream=bool(body.stream))
    output_tokens, reason = _length(raw, body, max_tokens, served.early_eos)
    options = body.stream_options or StreamOptions()
    response = ResponseOptions(
        prompt_tokens=prompt_tokens,
        stream=bool(body.stream),
        include_usage=options.include_usage,
        continuous_usage=options.include_usage and options.continuous_usage_stats,
        token_ids=bool(body.return_token_ids),
        prompt_ids=ids if body.return_token_ids else None,
        hidden=served.hidden_reasoning,
    )
    steps = draw_steps(raw, output_tokens, served.acceptance)
    salt = body.cache_salt or ""
    return GenerationRequest(response, max_tokens, output_tokens, reason, prompt, steps, salt)


def whole_tokens(text: str) -> bytes:
    """A text's UTF-8 bytes, padded to whole tokens."""
    data = text.encode("utf-8", "surrogatepass")
    return data + bytes(-len(data) % BYTES_PER_TOKEN)


def _completion(body: Body) -> tuple[int, ...] | bytes:
    prompt = body.prompt
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], list):
        prompt = list(prompt[0])
    if not prompt:
        raise Refusal(_BAD, "The prompt is missing or empty", param="prompt")
    if isinstance(prompt, str):
        return whole_tokens(prompt)
    ids = [token for token in prompt if isinstance(token, int)]
    if len(ids) != len(prompt):
        raise Refusal(_BAD, "this engine takes one prompt per request", param="prompt")
    return tuple(ids)


def _chat(body: Body) -> bytes:
    if not body.messages:
        raise Refusal(_BAD, "The messages are missing or empty", param="messages")
    prompt = bytearray()
    system = [ChatMessage("system", body.system)] if body.system else []
    for message in (*system, *body.messages):
        content = message.content or ""
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        role = message.role.encode("utf-8", "surrogatepass")
        prompt += role[:MESSAGE_BYTES].ljust(MESSAGE_BYTES) + whole_tokens(text)
    return bytes(prompt) + GENERATION


def _max_tokens(body: Body, chat: bool, prompt_tokens: int, served: ServedModel) -> int:
    limit = served.max_model_len
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if max_tokens is None:
        max_tokens = max(1, limit - prompt_tokens) if chat else DEFAULT_COMPLETION_TOKENS
    if max_tokens < 1:
        raise Refusal(_BAD, f"max_tokens must be at least 1, got {max_tokens}.", param="max_tokens")
    if max_tokens > limit:
        message = f"max_tokens={max_tokens} cannot be greater than max_model_len={limit}."
        raise Refusal(_BAD, message, param="max_tokens")
    if prompt_tokens + max_tokens > limit:
        message = (
            f"The maximum context length is {limit} tokens; {prompt_tokens} of prompt and {max_tokens} of "
            f"output are {prompt_tokens + max_tokens}."
        )
        raise Refusal(_BAD, message, param="input_tokens")
    return max_tokens


def _length(raw: bytes, body: Body, max_tokens: int, early_eos: float) -> tuple[int, str]:
    # A function of the request's bytes alone: the same request ends at the same token, as if greedy.
    draw = zlib.crc32(raw)
    if body.ignore_eos or draw >= early_eos * 2**32:
        return max_tokens, "length"
    shorter = 1 + zlib.crc32(raw, 1) % max_tokens
    return min(max(shorter, body.min_tokens), max_tokens), "stop"
