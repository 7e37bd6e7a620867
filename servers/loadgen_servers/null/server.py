"""The null server: prebuilt tokens at known times, and a log of those times to check a client against.

It does no work, so any difference between a client's figures and the log is the client's error. The log
has, per request, the kernel's receive timestamp and, for each message with a token, CLOCK_MONOTONIC right
before the write that completes it; the same is the end of the message's text.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from loadgen_servers import http_server
from loadgen_servers.http_server import Connection, Port, Request
from loadgen_servers.log_file import open_log
from loadgen_servers.null.messages import DIALECTS, SHAPES, Shape, Write

_MOST_TOKENS = 1_000_000


class Body(msgspec.Struct):
    """The fields of a completions or chat request that the null server uses."""

    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stream: bool = False
    prompt: list[int] | str | None = None

    @property
    def tokens(self) -> int:
        """How many tokens are requested."""
        return self.max_completion_tokens or self.max_tokens or 16


@dataclass
class Stream:
    """One response in progress."""

    connection: Connection
    request_id: str
    received_ns: int
    due_ns: int  # nothing is written before
    writes: Sequence[Write]
    written: int = 0
    wrote_ns: array[int] = field(default_factory=lambda: array("q"))  # one for each message with a token

    @property
    def ended(self) -> bool:
        return self.written == len(self.writes)


@dataclass
class NullServer:
    """Sends every active stream one write per interval (0: as fast as the sockets accept them)."""

    port: Port
    ttft_ns: int
    interval_ns: int
    shapes: Sequence[Shape] = ()
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
        """Send the next write of every stream that is due."""
        clock = time.monotonic_ns
        now_ns = clock()
        ended = False
        for stream in self.streams:
            if stream.due_ns > now_ns:
                continue
            connection = stream.connection
            if connection.pending:
                connection.flush()
                continue
            write = stream.writes[stream.written]
            stream.written += 1
            sent_ns = clock()
            times_ns = (sent_ns,) * write.messages
            connection.send(write.data % times_ns)
            stream.wrote_ns.extend(times_ns)
            if write.pause_ns:
                stream.due_ns = sent_ns + write.pause_ns
            ended = ended or stream.ended
        if ended:
            over = [stream for stream in self.streams if stream.ended]
            self.streams = [stream for stream in self.streams if not stream.ended]
            self.finished += over
            for stream in over:
                while stream.connection.pending and stream.connection.flush():
                    time.sleep(0.0001)

    def gone(self, connection: Connection) -> None:
        """Forget the streams of a client that went away."""
        self.streams = [stream for stream in self.streams if stream.connection is not connection]

    def handle(self, connection: Connection, request: Request) -> None:
        """Answer a control request at once; queue a completion for its first token."""
        messages = DIALECTS.get(request.path)
        if messages is None:
            owner = b"loadgen-null-nagle" if self.port.nagle else b"loadgen-null"
            connection.send(_control(request.path, owner))
            return
        try:
            body = msgspec.json.decode(request.body, type=Body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            connection.send(_refusal(b"the body is not a valid request of this API"))
            return
        if not body.stream:
            connection.send(_refusal(b"the null server only streams: set stream to true"))
            return
        if not 0 < body.tokens <= _MOST_TOKENS:
            connection.send(_refusal(b"max_tokens must be from 1 to %d" % _MOST_TOKENS))
            return
        prompt_tokens = len(body.prompt) if isinstance(body.prompt, list) else 1
        self.streams.append(
            Stream(
                connection=connection,
                request_id=request.headers.get("x-request-id", ""),
                received_ns=request.received_ns,
                due_ns=request.received_ns + self.ttft_ns,
                writes=messages.answer(prompt_tokens, body.tokens, self.shapes),
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
    return http_server.response(b'{"error":{"message":"%s"}}' % why, "400 Bad Request")


def _control(path: str, owner: bytes) -> bytes:
    model = b'{"id":"null","object":"model","owned_by":"%s","max_model_len":%d}'
    answers = {
        "/health": b"",
        "/version": b'{"version":"0"}',
        "/v1/models": b'{"object":"list","data":[%s]}' % (model % (owner, _MOST_TOKENS)),
    }
    if path not in answers:
        return http_server.response(b'{"detail":"Not Found"}', "404 Not Found")
    return http_server.response(answers[path])


def main(argv: Sequence[str] | None = None) -> int:
    """Listen, print the URL as one JSON line, serve until SIGTERM or the end of stdin, write the log."""
    options = _parser().parse_args(argv)
    http_server.raise_file_limit()
    try:
        port = Port(options.host, options.port, options.nagle)
    except OSError as error:
        print(
            f"null server: cannot listen on {options.host}:{options.port}: {error.strerror}", file=sys.stderr
        )
        return 1
    shapes = [shape for flag in SHAPES if (shape := getattr(options, flag)) is not None]
    server = NullServer(port, int(options.ttft_ms * 1e6), int(options.interval_ms * 1e6), shapes)
    signal.signal(signal.SIGTERM, server.stop)
    signal.signal(signal.SIGINT, server.stop)
    if options.exit_with_stdin:
        port.watch_stdin(server.stop)
    print(msgspec.json.encode({"base_url": port.base_url}).decode(), flush=True)
    gc.freeze()
    gc.disable()
    server.run()
    port.close()
    if options.log:
        with os.fdopen(open_log(options.log), "wb") as log:
            log.write(server.log())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadgen_servers.null", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    parser.add_argument(
        "--ttft-ms", type=float, default=50.0, help="from a request's last byte to its first token"
    )
    parser.add_argument("--interval-ms", type=float, default=20.0, help="between tokens; 0 is unpaced")
    parser.add_argument("--log", type=Path, help="file for the true times, one JSON line a request")
    parser.add_argument("--nagle", action="store_true", help="leave Nagle's algorithm on")
    parser.add_argument("--exit-with-stdin", action="store_true", help="stop when stdin ends")
    shapes = parser.add_argument_group("shapes of a response", "applied in this order")
    for flag, (build, metavar, what) in SHAPES.items():
        shapes.add_argument(flag, dest=flag, type=build, metavar=metavar, help=what)
    return parser
