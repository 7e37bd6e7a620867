"""Faulty server: the APIs of completions, chat, responses and `/generate`, faults at a rate, and a log.

It runs in a thread of its own. Which request meets which fault follows from a seed and the id of the request
alone, so one that is sent again meets the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
import struct
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from loadgen.transport.failure import FailureKind

PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/generate")
_RESPONSES = PATHS[2]
_STATUSES = {"length": "incomplete", "stop": "completed", "abort": "cancelled"}  # of them, by finish reason
_PER_MESSAGE, _PER_PROMPT = 4, 3  # tokens of a chat template
_LONGEST_STALL_S = 60.0
_START_S = 10.0
_K = FailureKind


@dataclass(frozen=True)
class Behaviour:
    """How the server answers in one run."""

    seed: int = 0
    prefix: str = ""  # of the ids of the requests that may meet a fault
    fault_rate: float = 0.0
    faults: tuple[str, ...] = ()
    ttft_s: float = 0.0
    gap_s: float = 0.0
    tokens_per_message: int = 1
    messages_per_write: int = 1
    pieces: int = 1  # that each write is cut into
    keep_alive: bool = True
    usage: bool = True  # in the answers to these requests


@dataclass
class Logged:
    """One request as the server saw it, and what it wrote."""

    request_id: str
    path: str
    prompt_tokens: int
    fault: str
    at_ns: int  # CLOCK_MONOTONIC, when it had come
    port: int  # of the server
    messages: int = 0  # with a token, written
    tokens: int = 0  # in them
    usage: int | None = None  # completion tokens, as the whole answer counted them
    finished: bool = False  # its last token was written, with a finish reason
    ended: str = ""  # whole, fault, gone (by the client); "": it is under way


@dataclass(frozen=True)
class Fault:
    """What the server does wrong, and the ways in which such a request may fail; none: it succeeds."""

    kinds: frozenset[FailureKind]
    play: Callable[[_Exchange], Awaitable[None]]
    whole: bool = True  # also of an answer that is not streamed
    generate: bool = True  # also of `/generate`
    waits: bool = False  # until the client's timeout


class _Gone(Exception):
    """The client has closed the connection."""


@dataclass
class _Exchange:
    """One request under way, and the parts of its answer."""

    behaviour: Behaviour
    row: Logged
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    asked: int
    streamed: bool
    counted: bool  # whether answers have usage
    running_usage: bool
    closes: bool = False
    reason: str = ""  # of the end, once the last token is written

    @property
    def steps(self) -> list[int]:
        """The tokens of each message."""
        full, rest = divmod(self.asked, self.behaviour.tokens_per_message)
        return [self.behaviour.tokens_per_message] * full + [rest] * (rest > 0)

    async def write(self, data: bytes) -> None:
        """Write in pieces; raises _Gone."""
        size = -(-len(data) // self.behaviour.pieces)
        for at in range(0, len(data), size):
            if self.reader.at_eof() or self.writer.is_closing():
                raise _Gone
            self.writer.write(data[at : at + size])
            await self.writer.drain()
            if self.behaviour.pieces > 1:
                await asyncio.sleep(0)

    async def head(self) -> None:
        """The head of a stream."""
        close = b"" if self.behaviour.keep_alive else b"connection: close\r\n"
        kind = b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
        await self.write(b"HTTP/1.1 200 OK\r\n" + kind + close + b"\r\n")

    async def response(self, status: str, body: bytes, *lines: str) -> None:
        """A response with a length."""
        lines = (*lines, f"content-length: {len(body)}", "content-type: application/json")
        await self.write("\r\n".join([f"HTTP/1.1 {status}", *lines, "\r\n"]).encode() + body)

    async def tokens(self, messages: int | None = None, reason: str = "length") -> None:
        """The head and messages with tokens: all, the last with a finish reason, or the first ones."""
        await asyncio.sleep(self.behaviour.ttft_s)
        await self.head()
        if self.row.path == _RESPONSES:
            await self.write(typed("response.created", response={"id": "r", "status": "in_progress"}))
        steps, together = self.steps, self.behaviour.messages_per_write
        for first in range(0, len(steps) if messages is None else messages, together):
            last = min(first + together, len(steps) if messages is None else messages)
            data = b""
            for at in range(first, last):
                end = reason if messages is None and at == len(steps) - 1 else None
                data += self.token(sum(steps[:at]), steps[at], end)
            if first:
                await asyncio.sleep(self.behaviour.gap_s)
            await self.write(data)
            self.row.messages += last - first
            self.row.tokens += sum(steps[first:last])
        self.row.finished = messages is None
        self.reason = reason

    def token(self, before: int, tokens: int, reason: str | None) -> bytes:
        """A message of some tokens after others."""
        text = " a" * tokens
        if self.row.path == "/generate":
            finish = None if reason is None else {"type": reason, "message": "the scheduler stopped it"}
            counts = {"prompt_tokens": self.row.prompt_tokens, "completion_tokens": before + tokens}
            return event({"text": " a" * (before + tokens), "meta_info": {**counts, "finish_reason": finish}})
        if self.row.path == _RESPONSES:
            return typed("response.output_text.delta", delta=text)
        part: dict[str, Any] = {"text": text}
        if "chat" in self.row.path:
            part = {"delta": {"content": text}}
        message: dict[str, Any] = {"choices": [{"index": 0, **part, "finish_reason": reason}]}
        if self.running_usage:
            message["usage"] = self.counts(before + tokens)
        return event(message)

    def counts(self, tokens: int) -> dict[str, int]:
        """What usage says."""
        prompt = self.row.prompt_tokens
        return {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}

    async def closing(self, usage: dict[str, int] | None, done: bool = True) -> None:
        """The message with usage, [DONE] and the end of the body; the answer is whole then."""
        data = b""
        if self.row.path == _RESPONSES:
            data += typed("response.completed", response=self.response_object(usage, self.row.tokens))
        elif usage is not None and self.row.path != "/generate":
            data += event({"choices": [], "usage": usage})
        data += chunk(b"data: [DONE]\n\n") * done
        await self.write(data + b"0\r\n\r\n")
        if self.row.path == "/generate" or self.running_usage:
            self.row.usage = self.row.tokens
        elif usage is not None and usage["completion_tokens"]:
            self.row.usage = usage["completion_tokens"]
        self.row.ended = "whole"

    def response_object(self, usage: dict[str, int] | None, tokens: int) -> dict[str, Any]:
        """The answer as `/v1/responses` has it at the end of a stream, or as its only part."""
        part = {"type": "output_text", "text": " a" * tokens, "annotations": []}
        status = _STATUSES[self.reason or "length"]
        why = {"incomplete_details": {"reason": "max_output_tokens"}} if status == "incomplete" else {}
        found: dict[str, Any] = {"id": "r", "object": "response", "status": status, **why}
        found["output"] = [{"type": "message", "role": "assistant", "content": [part]}]
        if usage is not None:
            found["usage"] = {
                "input_tokens": usage["prompt_tokens"],
                "output_tokens": usage["completion_tokens"],
                "total_tokens": usage["total_tokens"],
            }
        return found

    async def whole(self, usage: bool = True) -> None:
        """The answer as a server in order sends it."""
        counted = self.counts(self.asked) if usage and self.counted else None
        if self.streamed:
            await self.tokens()
            await self.closing(counted)
            return
        await asyncio.sleep(self.behaviour.ttft_s + self.behaviour.gap_s * self.asked)
        close = () if self.behaviour.keep_alive else ("connection: close",)
        await self.response("200 OK", self.body(counted), *close)
        self.row.tokens, self.row.messages, self.row.ended = self.asked, 1, "whole"
        if counted is not None or self.row.path == "/generate":
            self.row.usage = self.asked

    def body(self, usage: dict[str, int] | None) -> bytes:
        """An answer in one piece."""
        text = " a" * self.asked
        if self.row.path == "/generate":
            meta: dict[str, Any] = {"finish_reason": {"type": "length"}, "completion_tokens": self.asked}
            meta["prompt_tokens"] = self.row.prompt_tokens
            return msgspec.json.encode({"text": text, "meta_info": meta})
        if self.row.path == _RESPONSES:
            return msgspec.json.encode(self.response_object(usage, self.asked))
        part: dict[str, Any] = {"text": text}
        if "chat" in self.row.path:
            part = {"message": {"role": "assistant", "content": text}}
        choice = {"index": 0, **part, "finish_reason": "length"}
        more = {} if usage is None else {"usage": usage}
        return msgspec.json.encode({"choices": [choice], **more})

    async def middle(self) -> None:
        """What comes before a fault in mid-answer."""
        if self.streamed:
            await self.tokens(len(self.steps) // 2)
        else:
            data = self.body(self.counts(self.asked))
            head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
            await self.write(head.encode() + data[: len(data) // 2])

    def reset(self) -> None:
        """End the connection with a RST."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()
        self.closes = True

    def cut(self) -> None:
        """End the connection with a FIN."""
        self.closes = True

    async def until_gone(self) -> None:
        """Wait until the client closes the connection."""
        async with asyncio.timeout(_LONGEST_STALL_S):
            await self.reader.read(1)
        raise _Gone


# What is played in place of an answer.


async def _refused(exchange: _Exchange) -> None:
    await exchange.response("500 Internal Server Error", b'{"error":{"message":"out of order"}}')


async def _unavailable(exchange: _Exchange) -> None:
    await exchange.response("503 Service Unavailable", b"", "connection: close")
    exchange.cut()


async def _limited(exchange: _Exchange) -> None:
    await exchange.response("429 Too Many Requests", b'{"error":{"message":"slowly"}}', "retry-after: 1")


async def _reset_at_once(exchange: _Exchange) -> None:
    exchange.reset()


async def _closed_at_once(exchange: _Exchange) -> None:
    exchange.cut()


async def _reset(exchange: _Exchange) -> None:
    await exchange.middle()
    await asyncio.sleep(0.01)  # a RST throws away what has not been read
    exchange.reset()


async def _closed(exchange: _Exchange) -> None:
    await exchange.middle()
    exchange.cut()


async def _stalled(exchange: _Exchange) -> None:
    await exchange.middle()
    await exchange.until_gone()


async def _pings(exchange: _Exchange) -> None:
    await exchange.middle()
    while True:
        await exchange.write(chunk(b": ping\n\n"))
        await asyncio.sleep(0.2)


async def _malformed(exchange: _Exchange) -> None:
    await exchange.tokens(len(exchange.steps) // 2)
    await exchange.write(chunk(b'data: {"choices":[{"index":0,"te\n\n'))
    await exchange.write(exchange.token(0, 1, None) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


async def _error(exchange: _Exchange) -> None:
    if not exchange.streamed:
        await exchange.response("200 OK", b'{"error":{"message":"out of memory","code":500}}')
        return
    await exchange.tokens(len(exchange.steps) // 2)
    await exchange.write(event({"error": {"message": "out of memory", "code": 500}}))
    await exchange.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


async def _aborted(exchange: _Exchange) -> None:
    await exchange.tokens(reason="abort")
    await exchange.closing(exchange.counts(exchange.asked))
    exchange.row.ended = ""


async def _empty(exchange: _Exchange) -> None:
    await exchange.head()
    await exchange.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


async def _uncounted(exchange: _Exchange) -> None:
    await exchange.whole(usage=False)


async def _zeros(exchange: _Exchange) -> None:
    await exchange.tokens()
    await exchange.closing(dict.fromkeys(exchange.counts(0), 0))


async def _without_done(exchange: _Exchange) -> None:
    await exchange.tokens()
    await exchange.closing(exchange.counts(exchange.asked), done=False)


async def _closed_after(exchange: _Exchange) -> None:
    await exchange.whole()
    exchange.cut()


async def _reset_after(exchange: _Exchange) -> None:
    await exchange.whole()
    await asyncio.sleep(0.01)
    exchange.reset()


async def _early(exchange: _Exchange) -> None:
    exchange.asked = max(1, exchange.asked // 2)
    await exchange.tokens(reason="stop")
    await exchange.closing(exchange.counts(exchange.asked))


def _fails(*kinds: FailureKind) -> frozenset[FailureKind]:
    return frozenset(kinds)


FAULTS: dict[str, Fault] = {
    "500": Fault(_fails(_K.HTTP_STATUS), _refused),
    "503 and closed": Fault(_fails(_K.HTTP_STATUS), _unavailable),
    "429": Fault(_fails(_K.RATE_LIMITED), _limited),
    "reset at once": Fault(_fails(_K.TRUNCATED), _reset_at_once),
    "closed at once": Fault(_fails(_K.TRUNCATED), _closed_at_once),
    "reset": Fault(_fails(_K.TRUNCATED), _reset),
    "closed": Fault(_fails(_K.TRUNCATED), _closed),
    "stalled": Fault(_fails(_K.STALL, _K.TIMEOUT), _stalled, waits=True),
    "pings": Fault(_fails(_K.STALL, _K.TIMEOUT), _pings, whole=False, waits=True),
    "malformed": Fault(_fails(_K.MALFORMED), _malformed, whole=False),
    "error": Fault(_fails(_K.IN_BAND), _error),
    "aborted": Fault(_fails(_K.ABORTED), _aborted, whole=False),
    "empty": Fault(_fails(_K.EMPTY), _empty, whole=False),
    "no usage": Fault(_fails(), _uncounted, generate=False),
    "usage of zeros": Fault(_fails(), _zeros, whole=False, generate=False),
    "no [DONE]": Fault(_fails(), _without_done, whole=False),
    "closed after": Fault(_fails(), _closed_after),
    "reset after": Fault(_fails(), _reset_after),
    "early stop": Fault(_fails(), _early, whole=False),
}


def chunk(data: bytes) -> bytes:
    """A chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(message: object) -> bytes:
    """A server-sent event as a chunk."""
    return chunk(b"data: %b\n\n" % msgspec.json.encode(message))


def typed(name: str, **fields: object) -> bytes:
    """An event of `/v1/responses` as a chunk."""
    data = msgspec.json.encode({"type": name, **fields})
    return chunk(b"event: %b\ndata: %b\n\n" % (name.encode(), data))


def prompt_tokens(body: dict[str, Any]) -> int:
    """Tokens of a request: its ids, or its words and those of a chat template."""
    if "messages" in body:
        return _PER_PROMPT + sum(_PER_MESSAGE + _words(each.get("content")) for each in body["messages"])
    if "input" in body:
        items = body["input"] if isinstance(body["input"], list) else [{"content": body["input"]}]
        system = [{"content": body["instructions"]}] if body.get("instructions") else []
        return prompt_tokens({"messages": [*system, *items]})
    prompt = next((body[name] for name in ("prompt", "input_ids", "text") if name in body), "")
    return len(prompt) if isinstance(prompt, list) else _words(prompt)


def _words(content: Any) -> int:
    if isinstance(content, list):
        return sum(_words(part.get("text", "")) for part in content)
    return len((content or "").split())


def _output_tokens(body: dict[str, Any]) -> int:
    sampling = body.get("sampling_params", {})
    limits = [body.get(name) for name in ("max_tokens", "max_completion_tokens", "max_output_tokens")]
    found = (*limits, sampling.get("max_new_tokens"))
    return next(filter(None, found), 16)


@dataclass
class FaultyServer:
    """Answers as its behaviour says, which may be changed between runs, and keeps a log."""

    tls: ssl.SSLContext | None = None
    behaviour: Behaviour = field(default_factory=Behaviour)
    log: list[Logged] = field(default_factory=list)
    connections: int = 0  # that are open
    base_url: str = ""

    @contextmanager
    def serving(self, port: int = 0) -> Iterator[FaultyServer]:
        """The server, while it runs."""
        started = threading.Event()
        loop = asyncio.new_event_loop()
        stopped = asyncio.Event()

        async def serve() -> None:
            async with self._listening(port):
                started.set()
                await stopped.wait()

        thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
        thread.start()
        assert started.wait(_START_S)
        try:
            yield self
        finally:
            loop.call_soon_threadsafe(stopped.set)
            thread.join(_START_S)

    @asynccontextmanager
    async def _listening(self, port: int) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", port, ssl=self.tls, backlog=1024)
        scheme = "http" if self.tls is None else "https"
        self.base_url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield
        server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            with contextlib.suppress(OSError, EOFError, _Gone, asyncio.LimitOverrunError):
                while await self._answered(reader, writer):
                    pass
        finally:
            self.connections -= 1
            with contextlib.suppress(OSError):
                writer.close()

    async def _answered(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; whether the connection stays."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()
        fields = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])
        }
        body = await reader.readexactly(int(fields.get("content-length", 0)))
        method, path = head[0].split(" ")[:2]
        if method != "POST" or path not in PATHS:
            writer.write(_control(path))
            return True
        asked = msgspec.json.decode(body)
        exchange = self._exchange(fields.get("x-request-id", ""), path, asked, reader, writer)
        self.log.append(exchange.row)
        try:
            fault = FAULTS.get(exchange.row.fault)
            await (exchange.whole() if fault is None else fault.play(exchange))
        except (_Gone, OSError):
            exchange.row.ended = exchange.row.ended or "gone"
            raise
        exchange.row.ended = exchange.row.ended or "fault"
        return self.behaviour.keep_alive and not exchange.closes

    def _exchange(
        self,
        request_id: str,
        path: str,
        body: dict[str, Any],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> _Exchange:
        options = body.get("stream_options") or {}
        streamed = bool(body.get("stream"))
        fault = self._fault(request_id, path, streamed)
        row = Logged(
            request_id,
            path,
            prompt_tokens(body),
            fault,
            time.monotonic_ns(),
            writer.get_extra_info("sockname")[1],
        )
        counted = self.behaviour.usage or not self._is_measured(request_id)
        running = bool(options.get("continuous_usage_stats")) and counted
        return _Exchange(
            self.behaviour, row, reader, writer, _output_tokens(body), streamed, counted, running
        )

    def _is_measured(self, request_id: str) -> bool:
        return bool(self.behaviour.prefix) and request_id.startswith(self.behaviour.prefix)

    def _fault(self, request_id: str, path: str, streamed: bool) -> str:
        """The fault that a request meets; "": none."""
        behaviour = self.behaviour
        if not self._is_measured(request_id):
            return ""
        draw = random.Random(f"{behaviour.seed} {request_id}")
        if draw.random() >= behaviour.fault_rate:
            return ""
        name = draw.choice(behaviour.faults)
        fault = FAULTS[name]
        fits = (fault.whole or streamed) and (fault.generate or path != "/generate")
        return name if fits else ""


def _control(path: str) -> bytes:
    card = {"id": "m", "object": "model", "owned_by": "faulty", "max_model_len": 32768}
    answers: dict[str, object] = {
        "/health": {},
        "/v1/models": {"object": "list", "data": [card]},
        "/get_model_info": {"model_path": "m"},
    }
    status = "200 OK" if path in answers else "404 Not Found"
    body = msgspec.json.encode(answers.get(path, {"detail": "Not Found"}))
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body
