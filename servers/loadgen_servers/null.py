"""The null server: prebuilt tokens on a clock, and a log of the truth to hold a client against.

It does no work, so what a client reports beyond the log is the client's own doing. The log keeps,
per request, the kernel's receive stamp and CLOCK_MONOTONIC right before each token's write.
"""

from __future__ import annotations

import argparse
import gc
import signal
import sys
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from loadgen_servers import sockets
from loadgen_servers.sockets import Connection, Port, Request

_MODEL = "null"


class Body(msgspec.Struct):
    """The fields of a completions or chat request that the null server obeys."""

    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stream: bool = False
    prompt: list[int] | str | None = None

    @property
    def tokens(self) -> int:
        return self.max_completion_tokens or self.max_tokens or 16


@dataclass(frozen=True)
class Messages:
    """The prebuilt bytes of one dialect: a token, and a last token with everything after it."""

    token: bytes
    last: bytes
    usage: bytes

    def final(self, prompt_tokens: int, tokens: int) -> bytes:
        """The last token, the usage message, `[DONE]` and the end of the body in one write."""
        usage = self.usage % (prompt_tokens, prompt_tokens + tokens, tokens)
        return self.last + sockets.event(usage) + sockets.event(b"[DONE]") + sockets.STREAM_END


def _messages(shape: bytes, choice: bytes) -> Messages:
    head = b'{"id":"cmpl-null","object":"%s","created":0,"model":"null","choices":' % shape
    usage = b'[],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}}'
    return Messages(
        token=sockets.event(head + choice % b"null" + b"}"),
        last=sockets.event(head + choice % b'"length"' + b"}"),
        usage=head + usage,
    )


DIALECTS = {
    "/v1/completions": _messages(
        b"text_completion",
        b'[{"index":0,"text":" token","logprobs":null,"finish_reason":%s,'
        b'"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]',
    ),
    "/v1/chat/completions": _messages(
        b"chat.completion.chunk",
        b'[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":%s,"token_ids":null}]',
    ),
}


@dataclass
class Stream:
    """One response under way."""

    connection: Connection
    messages: Messages
    request_id: str
    received_ns: int
    first_due_ns: int
    prompt_tokens: int
    tokens: int
    left: int
    wrote_ns: array[int] = field(default_factory=lambda: array("q"))


@dataclass
class NullServer:
    """Serves every active stream one token per interval (0: as fast as the sockets take them)."""

    port: Port
    ttft_ns: int
    interval_ns: int
    streams: list[Stream] = field(default_factory=list)
    finished: list[Stream] = field(default_factory=list)
    stopping: bool = False

    def stop(self, *_: object) -> None:
        self.stopping = True

    def run(self) -> None:
        """Serve until stopped."""
        tick_ns = time.monotonic_ns()
        while not self.stopping:
            if self.interval_ns == 0:
                self.port.serve(0.0 if self.streams else 0.2, self.handle, self.gone)
                self.write_tokens()
                continue
            wait_ns = tick_ns - time.monotonic_ns()
            if wait_ns > 0:
                self.port.serve(wait_ns / 1e9, self.handle, self.gone)
                continue
            self.write_tokens()
            tick_ns += self.interval_ns
            if tick_ns < time.monotonic_ns():
                self.port.serve(0.0, self.handle, self.gone)

    def write_tokens(self) -> None:
        """One token to every stream whose first token is due."""
        clock = time.monotonic_ns
        now_ns = clock()
        ended = False
        for stream in self.streams:
            if stream.first_due_ns > now_ns:
                continue
            connection = stream.connection
            if connection.pending:
                connection.flush()
                continue
            stream.left -= 1
            if stream.left:
                data = stream.messages.token
            else:
                data = stream.messages.final(stream.prompt_tokens, stream.tokens)
                ended = True
            if not stream.wrote_ns:
                data = sockets.STREAM_HEAD + data
            stream.wrote_ns.append(clock())
            connection.send(data)
        if ended:
            self.finished += [stream for stream in self.streams if stream.left == 0]
            for stream in self.streams:
                if stream.left == 0 and stream.connection.pending:
                    self._drain(stream.connection)
            self.streams = [stream for stream in self.streams if stream.left > 0]

    def _drain(self, connection: Connection) -> None:
        while connection.pending and connection.flush():
            time.sleep(0.0001)

    def gone(self, connection: Connection) -> None:
        """Forget the streams of a client that went away."""
        self.streams = [stream for stream in self.streams if stream.connection is not connection]

    def handle(self, connection: Connection, request: Request) -> None:
        """Answer a control request at once; queue a completion for its first token."""
        messages = DIALECTS.get(request.path)
        if messages is None:
            connection.send(_control(request.path))
            return
        try:
            body = msgspec.json.decode(request.body, type=Body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            connection.send(_refusal(b"the body is not a request of this API"))
            return
        if not body.stream:
            connection.send(_refusal(b"the null server only streams"))
            return
        prompt = body.prompt
        prompt_tokens = len(prompt) if isinstance(prompt, list) else 1
        self.streams.append(
            Stream(
                connection=connection,
                messages=messages,
                request_id=request.headers.get("x-request-id", ""),
                received_ns=request.received_ns,
                first_due_ns=request.received_ns + self.ttft_ns,
                prompt_tokens=prompt_tokens,
                tokens=body.tokens,
                left=body.tokens,
            )
        )

    def log(self) -> bytes:
        """Every finished request as one JSON line: id, received_ns, wrote_ns."""
        rows = (
            {"request_id": s.request_id, "received_ns": s.received_ns, "wrote_ns": s.wrote_ns.tolist()}
            for s in self.finished
        )
        return b"\n".join(msgspec.json.encode(row) for row in rows)


def _refusal(why: bytes) -> bytes:
    return sockets.response(b'{"error":{"message":"%s"}}' % why, "400 Bad Request")


def _control(path: str) -> bytes:
    model = b'{"id":"null","object":"model","owned_by":"loadgen-null","max_model_len":1000000}'
    answers = {
        "/health": b"",
        "/version": b'{"version":"0"}',
        "/v1/models": b'{"object":"list","data":[%s]}' % model,
    }
    if path not in answers:
        return sockets.response(b'{"detail":"Not Found"}', "404 Not Found")
    return sockets.response(answers[path])


def main(argv: Sequence[str] | None = None) -> int:
    """Listen, say where in one JSON line, serve until SIGTERM, write the log."""
    parser = argparse.ArgumentParser(prog="python -m loadgen_servers.null", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument(
        "--ttft-ms", type=float, default=50.0, help="from a request's last byte to its first token"
    )
    parser.add_argument("--interval-ms", type=float, default=20.0, help="between tokens; 0 is unpaced")
    parser.add_argument("--log", type=Path, help="where to write the truth, one JSON line a request")
    options = parser.parse_args(argv)
    sockets.raise_file_limit()
    try:
        port = Port(options.host, options.port)
    except OSError as error:
        print(
            f"null server: cannot listen on {options.host}:{options.port}: {error.strerror}", file=sys.stderr
        )
        return 1
    server = NullServer(port, int(options.ttft_ms * 1e6), int(options.interval_ms * 1e6))
    signal.signal(signal.SIGTERM, server.stop)
    signal.signal(signal.SIGINT, server.stop)
    print(msgspec.json.encode({"base_url": port.base_url}).decode(), flush=True)
    gc.freeze()
    gc.disable()
    server.run()
    port.close()
    if options.log:
        options.log.write_bytes(server.log())
    return 0


if __name__ == "__main__":
    sys.exit(main())
