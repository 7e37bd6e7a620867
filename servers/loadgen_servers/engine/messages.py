"""What the engine writes: vLLM's message shapes, prebuilt so that a token costs a lookup and a send.

Token i of every answer is word i of a fixed cycle, and its id is the word's place in it: the same
request always gets the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from loadgen_servers import http_server

_LOOP = "the model reads every weight once for each step and writes one token to its cache"
WORDS = tuple(f" {word}" for word in _LOOP.split())
CYCLE = len(WORDS)
FIRST_WORD_ID = 1000
_FINGERPRINT = b',"system_fingerprint":"loadgen-engine"'
_DETAILS = b',"prompt_tokens_details":%s,"completion_tokens_details":%s'
_CACHED = b'{"cached_tokens":%d,"created_cache_tokens":null,"multimodal_tokens":null}'


def text_of(first: int, count: int) -> str:
    """The text of tokens first, …, first + count - 1 of any answer."""
    return "".join(WORDS[i % CYCLE] for i in range(first, first + count))


def ids_of(first: int, count: int) -> list[int]:
    """The ids of those tokens."""
    return [FIRST_WORD_ID + i % CYCLE for i in range(first, first + count)]


class ResponseOptions(msgspec.Struct, frozen=True):
    """How a request wants its response: streamed, with which usage and ids."""

    prompt_tokens: int
    stream: bool = True
    include_usage: bool = False
    continuous_usage: bool = False
    token_ids: bool = False
    prompt_ids: Sequence[int] | None = None
    hidden: int = 0  # the first tokens, which usage counts and nothing shows

    def usage(self, produced: int) -> bytes:
        """The usage object, left open for what may follow the counts."""
        total = self.prompt_tokens + produced
        counts = (self.prompt_tokens, total, produced)
        return b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d' % counts


class Choice(msgspec.Struct, frozen=True):
    """How an API words a token, the only difference between the two: templates for `_fields`."""

    prefix: bytes
    kind: bytes
    whole_kind: bytes
    tokens: bytes  # the choice of a message of one or more tokens
    whole: bytes  # the choice of an answer that is not streamed
    after_whole: bytes  # and what follows its usage
    role: bytes = b""  # the choice of a message before the first token; empty without one
    after_role: bytes = b""


CHOICES = {
    "/v1/completions": Choice(
        prefix=b"cmpl",
        kind=b"text_completion",
        whole_kind=b"text_completion",
        tokens=b'{"index":0,"text":%(text)s,"logprobs":null,"finish_reason":%(reason)s,"stop_reason":null,'
        b'"prompt_token_ids":%(prompt_ids)s,"token_ids":%(ids)s}',
        whole=b'{"index":0,"text":%(text)s,"logprobs":null,"finish_reason":%(reason)s,"stop_reason":null,'
        b'"token_ids":%(ids)s,"prompt_logprobs":null,"prompt_token_ids":%(prompt_ids)s,"routed_experts":null}',
        after_whole=b',"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null',
    ),
    "/v1/chat/completions": Choice(
        prefix=b"chatcmpl",
        kind=b"chat.completion.chunk",
        whole_kind=b"chat.completion",
        tokens=b'{"index":0,"delta":{"content":%(text)s},"logprobs":null,"finish_reason":%(reason)s,'
        b'%(stop)s"token_ids":%(ids)s}',
        whole=b'{"index":0,"message":{"role":"assistant","content":%(text)s,"refusal":null,'
        b'"annotations":null,"audio":null,"function_call":null,"reasoning":null},"logprobs":null,'
        b'"finish_reason":%(reason)s,"stop_reason":null,"token_ids":%(ids)s,"routed_experts":null}',
        after_whole=b',"prompt_logprobs":null,"prompt_token_ids":%(prompt_ids)s,"prompt_text":null,'
        b'"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null',
        role=b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}',
        after_role=b',"prompt_token_ids":%(prompt_ids)s,"prompt_text":null',
    ),
}


def _fields(wanted: ResponseOptions, first: int, end: int, reason: str | None) -> dict[bytes, bytes]:
    """What a message with tokens first, …, end - 1 fills into the templates of its API."""
    return {
        b"text": msgspec.json.encode(text_of(first, end - first)),
        b"reason": msgspec.json.encode(reason),
        b"stop": b'"stop_reason":null,' if reason else b"",
        b"ids": _ids(ids_of(first, end - first)) if wanted.token_ids else b"null",
        b"prompt_ids": _ids(wanted.prompt_ids) if first == 0 else b"null",
    }


@dataclass
class Dialect:
    """The messages of one API for one model; `interval` is how many tokens a message carries."""

    choice: Choice
    model: str
    created_s: int
    interval: int = 1
    drafts: bool = False  # a step gives several tokens
    role_at_once: bool = False  # the message before the first token is sent when a request is accepted
    opening: bytes = field(init=False)  # the same for all requests
    table: list[bytes] = field(init=False)  # [n % CYCLE]: the plain message that ends with the n-th token

    def __post_init__(self) -> None:
        plain = ResponseOptions(prompt_tokens=0)
        self.opening = self.role(plain) + self.tokens(plain, 0, 1)
        ends = range(self.interval + CYCLE, self.interval + 2 * CYCLE)
        messages = {n % CYCLE: self.tokens(plain, n - self.interval, n) for n in ends}
        self.table = [messages[i] for i in range(CYCLE)]

    def begin(self, wanted: ResponseOptions) -> bytes:
        """Everything that leaves with the first token of a plain stream."""
        return self.opening

    def role(self, wanted: ResponseOptions) -> bytes:
        """The message before the first token; empty where the API has none."""
        if not self.choice.role:
            return b""
        after = self.choice.after_role % _fields(wanted, 0, 0, None)
        return http_server.event(self._head() + self.choice.role + b"]" + _running(wanted, 0) + after + b"}")

    def tokens(self, wanted: ResponseOptions, first: int, end: int, reason: str | None = None) -> bytes:
        """One message with tokens first, …, end - 1; with a reason it is the last that carries any."""
        choice = self.choice.tokens % _fields(wanted, first, end, reason)
        # If no usage message carries the fingerprint, it rides on the last token's.
        fingerprint = _FINGERPRINT if reason and not wanted.include_usage else b""
        return http_server.event(self._head() + choice + b"]" + _running(wanted, end) + fingerprint + b"}")

    def end(
        self,
        wanted: ResponseOptions,
        produced: int,
        cached: int | None = None,
        reason: str = "length",
        metrics: bytes = b"",
    ) -> bytes:
        """Everything after the last token of a stream; `cached` prompt tokens if not None.

        The reason is on the last token here; `metrics` is what vLLM reports of one request, as JSON.
        """
        usage = b""
        if wanted.include_usage:
            counts = wanted.usage(produced)
            if cached is not None:
                counts += b',"prompt_tokens_details":{"cached_tokens":%d}' % cached
            if wanted.hidden:
                counts += b',"completion_tokens_details":' + _reasoning(wanted, produced)
            own = b',"metrics":' + metrics if metrics else b""
            usage = http_server.event(
                self._head() + b'],"usage":' + counts + b"}" + _FINGERPRINT + own + b"}"
            )
        return usage + http_server.event(b"[DONE]") + http_server.STREAM_END

    def whole(self, wanted: ResponseOptions, produced: int, reason: str, cached: int | None = None) -> bytes:
        """An answer that is not streamed, HTTP head included."""
        fields = _fields(wanted, min(wanted.hidden, produced), produced, reason)
        choice, after = self.choice.whole % fields, self.choice.after_whole % fields
        prompt = b"null" if cached is None else _CACHED % cached
        details = _DETAILS % (prompt, _reasoning(wanted, produced))
        usage = b'],"service_tier":null' + _FINGERPRINT + b',"usage":' + wanted.usage(produced) + details
        return http_server.response(self._head(self.choice.whole_kind) + choice + usage + b"}" + after + b"}")

    def _head(self, kind: bytes = b"") -> bytes:
        # One id for the whole process: answers are not matched by it, so the bytes of a token can be shared.
        model = msgspec.json.encode(self.model)
        kind = kind or self.choice.kind
        head = b'{"id":"%s-loadgen","object":"%s","created":%d,"model":%s,"choices":['
        return head % (self.choice.prefix, kind, self.created_s, model)


def _reasoning(wanted: ResponseOptions, produced: int) -> bytes:
    return b'{"reasoning_tokens":%d}' % min(wanted.hidden, produced) if wanted.hidden else b"null"


def _ids(ids: Sequence[int] | None) -> bytes:
    return b"null" if ids is None else msgspec.json.encode(ids)


def _running(wanted: ResponseOptions, produced: int) -> bytes:
    return b',"usage":' + wanted.usage(produced) + b"}" if wanted.continuous_usage else b""


class Reply(msgspec.Struct):
    """Bytes for each moment of an answer; empty where nothing is sent, as here, until all of it is."""

    dialect: Dialect
    wanted: ResponseOptions

    def start(self) -> bytes:
        """What is sent as soon as the request is accepted, before any prefill."""
        return b""

    def token(self, n: int) -> bytes:
        """What is sent with the n-th token when more will come."""
        return b""

    def last(self, n: int, reason: str, cached: int | None = None, metrics: bytes = b"") -> bytes:
        """What is sent when the answer ends after n tokens: those not sent yet, and the end.

        `cached` is the number of cached prompt tokens, None if it is not to be reported; `metrics` the
        request's own, which only a stream's usage carries.
        """
        return self.dialect.whole(self.wanted, n, reason, cached)


class DetailedStream(Reply):
    """A stream whose messages carry running usage, token ids or a draft's tokens, formatted one by one.

    With a stream interval of N the messages carry 1, N, N, … and the rest, as vLLM's do.
    """

    sent: int = 0

    def start(self) -> bytes:
        at_once = self.dialect.role_at_once
        return http_server.STREAM_HEAD + (self.dialect.role(self.wanted) if at_once else b"")

    def token(self, n: int) -> bytes:
        if n <= self.wanted.hidden or (self.sent and n - self.sent < self.dialect.interval):
            return b""
        role, first = self._before(n)
        self.sent = n
        return role + self.dialect.tokens(self.wanted, first, n)

    def _before(self, n: int) -> tuple[bytes, int]:
        """Make what comes before the message that ends with the n-th token, and find its first token."""
        if self.sent:
            return b"", self.sent
        role = b"" if self.dialect.role_at_once else self.dialect.role(self.wanted)
        return role, min(self.wanted.hidden, n)

    def last(self, n: int, reason: str, cached: int | None = None, metrics: bytes = b"") -> bytes:
        role, first = self._before(n)
        message = self.dialect.tokens(self.wanted, first, n, reason)
        return role + message + self.dialect.end(self.wanted, n, cached, reason, metrics)


class PlainStream(DetailedStream):
    """A stream whose token messages are all prebuilt: the hot path of the engine."""

    def token(self, n: int) -> bytes:
        dialect = self.dialect
        if (n - 1) % dialect.interval:
            return b""
        self.sent = n
        return dialect.table[n % CYCLE] if n > 1 else dialect.begin(self.wanted)


def reply_for(dialect: Dialect, wanted: ResponseOptions) -> Reply:
    """The cheapest kind of reply with the requested options."""
    if not wanted.stream:
        return Reply(dialect, wanted)
    detailed = wanted.continuous_usage or wanted.token_ids or dialect.drafts
    detailed = detailed or dialect.role_at_once or wanted.hidden > 0
    return DetailedStream(dialect, wanted) if detailed else PlainStream(dialect, wanted)
