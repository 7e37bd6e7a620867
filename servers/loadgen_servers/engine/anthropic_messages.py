"""Anthropic's API as vLLM writes it: typed events under their names, the counts in the first and the last."""

from __future__ import annotations

import msgspec

from loadgen_servers import http_server
from loadgen_servers.engine.messages import Choice, Dialect, ResponseOptions, text_of
from loadgen_servers.engine.request import Refusal

PATH = "/v1/messages"
_REASONS = {"length": b'"max_tokens"', "stop": b'"end_turn"'}  # null of any other: of what was stopped
CHOICE = Choice(prefix=b"chatcmpl", kind=b"", whole_kind=b"", tokens=b"", whole=b"", after_whole=b"")
_OPEN = b'"content_block":{"type":"text","text":""},"index":0'
_STOPPED = b'"stop_reason":%b,"stop_sequence":null'


class MessagesDialect(Dialect):
    """The messages of Anthropic's API for one model; all of its choice is a prefix of ids."""

    def begin(self, wanted: ResponseOptions) -> bytes:
        """Everything that leaves with the first token: the prompt's count is in it."""
        return self.role(wanted) + self.tokens(wanted, 0, 1)

    def role(self, wanted: ResponseOptions) -> bytes:
        """The events before the first token: the message's begin, with all of the prompt, and a block's."""
        usage = b'{"input_tokens":%d,"output_tokens":0}' % wanted.prompt_tokens
        message = b'"message":{%b,"content":[],%b,%b,"usage":%b}'
        begun = message % (self._message(), self._model(), _STOPPED % b"null", usage)
        return _event(b"message_start", begun) + _event(b"content_block_start", _OPEN)

    def tokens(self, wanted: ResponseOptions, first: int, end: int, reason: str | None = None) -> bytes:
        """One event with tokens first, …, end - 1."""
        text = msgspec.json.encode(text_of(first, end - first))
        return _event(b"content_block_delta", b'"delta":{"type":"text_delta","text":%b},"index":0' % text)

    def end(
        self,
        wanted: ResponseOptions,
        produced: int,
        cached: int | None = None,
        reason: str = "length",
        metrics: bytes = b"",
    ) -> bytes:
        """Everything after the last token of a stream; `cached` prompt tokens if not None."""
        usage = _counts(wanted, produced, cached)
        stopped = b'"delta":{%b},"usage":%b' % (_STOPPED % _REASONS.get(reason, b"null"), usage)
        events = _event(b"content_block_stop", b'"index":0') + _event(b"message_delta", stopped)
        return events + _event(b"message_stop") + http_server.STREAM_END

    def whole(self, wanted: ResponseOptions, produced: int, reason: str, cached: int | None = None) -> bytes:
        """An answer that is not streamed, HTTP head included."""
        hidden = min(wanted.hidden, produced)
        text = msgspec.json.encode([{"type": "text", "text": text_of(hidden, produced - hidden)}])
        ended = b'"stop_reason":%b' % _REASONS.get(reason, b"null")
        usage = _counts(wanted, produced, cached)
        parts = (self._message(), text, self._model(), ended, usage)
        return http_server.response(b'{%b,"content":%b,%b,%b,"usage":%b}' % parts)

    def _message(self) -> bytes:
        return b'"id":"%b-loadgen","type":"message","role":"assistant"' % self.choice.prefix

    def _model(self) -> bytes:
        return b'"model":%b' % msgspec.json.encode(self.model)


def refuse(refusal: Refusal) -> bytes:
    """Make the response to a request that the engine will not serve."""
    error = {"type": refusal.kind, "message": refusal.message}
    return http_server.response(msgspec.json.encode({"type": "error", "error": error}), refusal.status)


def _event(kind: bytes, members: bytes = b"") -> bytes:
    data = b'{"type":"%b"%b}' % (kind, b"," + members if members else b"")
    return http_server.chunk(b"event: %b\ndata: %b\n\n" % (kind, data))


def _counts(wanted: ResponseOptions, produced: int, cached: int | None) -> bytes:
    """Make the usage: of the prompt what was cached apart, if that is reported."""
    inputs = wanted.prompt_tokens - (cached or 0)
    known = (
        b"" if cached is None else b',"cache_creation_input_tokens":0,"cache_read_input_tokens":%d' % cached
    )
    return b'{"input_tokens":%d,"output_tokens":%d%b}' % (inputs, produced, known)
