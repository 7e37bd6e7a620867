"""The bytes of one answer: what is sent when its n-th token exists (n from 1)."""

from __future__ import annotations

import msgspec

from loadgen_servers import http_server
from loadgen_servers.engine.messages import CYCLE, Dialect, ResponseOptions


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
        return http_server.STREAM_HEAD

    def token(self, n: int) -> bytes:
        if self.sent and n - self.sent < self.dialect.interval:
            return b""
        first, self.sent = self.sent, n
        role = b"" if first else self.dialect.role(self.wanted)
        return role + self.dialect.tokens(self.wanted, first, n)

    def last(self, n: int, reason: str, cached: int | None = None, metrics: bytes = b"") -> bytes:
        role = b"" if self.sent else self.dialect.role(self.wanted)
        message = self.dialect.tokens(self.wanted, self.sent, n, reason)
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
    return DetailedStream(dialect, wanted) if detailed else PlainStream(dialect, wanted)
