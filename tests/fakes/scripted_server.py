"""A loopback server that plays a script, and a transport driven against it inside the test's process."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from loadgen.features.ring.ring_transport import RingTransport
from loadgen.records.decode import Decoder
from loadgen.records.record import Record
from loadgen.transport.capture import Capture, Counters, Health, Inbox, Outbox, open_pair
from loadgen.transport.epoll_transport import EpollTransport
from loadgen.transport.failure import FailureKind
from loadgen.transport.httpx_transport import HttpxTransport
from loadgen.transport.sending.job import Job, Listed, Target, Transport
from loadgen.wire.openai import Completions, Dialect

if TYPE_CHECKING:
    from fakes.virtual_network import VirtualServer

READ_BYTES = 65536
PATIENCE_S = 30.0  # before a test that hangs is ended by its sockets
TRANSPORTS: dict[str, Callable[[Job, Outbox, Counters], Transport]] = {
    "wire": EpollTransport,
    "ring": RingTransport,
    "httpx": HttpxTransport,
}


class End(Enum):
    """What the server does with a connection after an answer."""

    KEEP = "keep"
    CLOSE = "close"  # FIN
    RESET = "reset"  # RST
    NOTIFY = "notify"  # TLS: the closing record, and the connection stays as it is until the client ends it
    HALF = "half"  # FIN, and it reads on
    HANG = "hang"  # neither answers nor closes until the server stops


@dataclass(frozen=True)
class Answer:
    """Pieces to write, each after a pause in seconds, and what comes then."""

    pieces: Sequence[bytes | float]
    end: End = End.KEEP


@dataclass(frozen=True)
class Asked:
    """One request as it came: its place on its connection and among all."""

    connection: int
    on_connection: int
    number: int
    head: str
    body: bytes


@dataclass
class ScriptedServer:
    """Answers each request as `script` says, one thread a connection; a context manager."""

    script: Callable[[Asked], Answer]
    tls: ssl.SSLContext | None = None
    host: str = "127.0.0.1"
    greeting: bytes = b""  # written as soon as a connection is made
    nagle: bool = False  # it leaves Nagle's algorithm on
    accepts: Callable[[int], bool] = lambda number: True  # False: reset at once
    connections: int = 0
    asked: list[Asked] = field(default_factory=list)

    def __enter__(self) -> ScriptedServer:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        self.listener = socket.create_server((self.host, 0), family=family, backlog=1024)
        self.stopped = threading.Event()
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self._accept, daemon=True)]
        self.sockets: list[socket.socket] = []
        self.threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.threads[0].join(PATIENCE_S)
        for sock in self.sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self.threads[1:]:
            thread.join(PATIENCE_S)
        for sock in self.sockets:
            sock.close()

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    @property
    def base_url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"

    def target(self, tls: ssl.SSLContext | None = None, host: str | None = None) -> Target:
        """Where a job finds this server."""
        return target_of(self.host, self.port, tls, host)

    def _accept(self) -> None:
        while not self.stopped.is_set():
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            if not self.accepts(self.connections):
                _reset(sock)
                continue
            sock.settimeout(PATIENCE_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, not self.nagle)
            self.sockets.append(sock)
            thread = threading.Thread(target=self._serve, args=(sock, self.connections), daemon=True)
            self.threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket, connection: int) -> None:
        with contextlib.suppress(OSError, EOFError):
            if self.tls is not None:
                sock = self.tls.wrap_socket(sock, server_side=True)
                self.sockets.append(sock)
            if self.greeting:
                sock.sendall(self.greeting)
            for on_connection in range(1 << 30):
                head, body = self._request(sock)
                with self.lock:
                    asked = Asked(connection, on_connection, len(self.asked), head, body)
                    self.asked.append(asked)
                if not self._play(sock, self.script(asked)):
                    return

    def _play(self, sock: socket.socket, answer: Answer) -> bool:
        for piece in answer.pieces:
            if isinstance(piece, bytes):
                sock.sendall(piece)
            elif self.stopped.wait(piece):
                return False
        if answer.end is End.HANG:
            self.stopped.wait(PATIENCE_S)
        elif answer.end is End.CLOSE:
            raw = sock.detach() if isinstance(sock, ssl.SSLSocket) else -1
            if raw >= 0:  # cut: FIN without a closing record
                socket.socket(fileno=raw).close()
            sock.close()
        elif answer.end is End.NOTIFY:
            assert isinstance(sock, ssl.SSLSocket)
            sock.unwrap()
        elif answer.end is End.RESET:
            _reset(sock)
        elif answer.end is End.HALF:
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(READ_BYTES):
                pass
        return answer.end is End.KEEP

    def _request(self, sock: socket.socket) -> tuple[str, bytes]:
        data = bytearray()
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += self._read(sock)
        head = data[:end].decode("latin-1")
        length = next(
            (int(line.partition(":")[2]) for line in head.lower().splitlines() if "content-length" in line), 0
        )
        while len(data) < end + 4 + length:
            data += self._read(sock)
        return head, bytes(data[end + 4 :])

    def _read(self, sock: socket.socket) -> bytes:
        data = sock.recv(READ_BYTES)
        if not data:
            raise EOFError
        return data


def _reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def target_of(host: str, port: int, tls: ssl.SSLContext | None = None, name: str | None = None) -> Target:
    """A target at an address, under another name where TLS shall see one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return Target(
        scheme="http" if tls is None else "https",
        host=name or host,
        port=port,
        path="/v1/completions",
        address=(int(family), (host, port)),
        headers=(),
        tls=tls,
    )


def closed_port() -> int:
    """A port on which nobody listens, and which no server gets that asks for any."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def job_of(target: Target, count: int, concurrency: int | None = None, **changes: Any) -> Job:
    """A closed-loop job of small requests, with whatever else is asked."""
    body = b'{"stream":true,"prompt":"hello"}'
    job = Job(
        target=target,
        order=Listed(range(count)),
        body=lambda _: body,
        offsets_ns=None,
        max_concurrency=concurrency,
    )
    return replace(job, **changes)


@dataclass
class Driven:
    """What a transport delivered, in plan order, and what it said of itself."""

    captures: list[Capture]
    health: Health
    counters: Counters
    inbox: Inbox


@dataclass
class Driver:
    """A transport and the two ends of its pipe, ready to run in this thread."""

    job: Job
    transport: str = "wire"
    server: VirtualServer | None = None  # the network; None: this machine's
    inbox: Inbox = field(init=False)
    counters: Counters = field(default_factory=Counters)

    def __post_init__(self) -> None:
        self.outbox, self.inbox = open_pair()

    def run(self) -> Driven:
        """Run the job to its end while a thread drains the pipe."""
        captures: list[Capture] = []
        reader = threading.Thread(target=self._drain, args=(captures,), daemon=True)
        reader.start()
        watchdog = threading.Timer(PATIENCE_S, self.inbox.stop)  # a hang ends as cancelled requests
        watchdog.start()
        build = TRANSPORTS[self.transport] if self.server is None else self.server.transport(self.transport)
        health = build(self.job, self.outbox, self.counters).run()
        watchdog.cancel()
        self.outbox.finish(health)
        reader.join(PATIENCE_S)
        self.inbox.sock.close()
        return Driven(sorted(captures, key=lambda c: c.index), health, self.counters, self.inbox)

    def _drain(self, captures: list[Capture]) -> None:
        while not self.inbox.closed:
            captures += [message for message in self.inbox.messages() if isinstance(message, Capture)]


def drive(job: Job, transport: str = "wire", server: VirtualServer | None = None) -> Driven:
    """Run a job to its end in this process, on a virtual server's network where one is given."""
    return Driver(job, transport, server).run()


# Responses.

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"
PING = b": ping\n\n"


def records(driven: Driven, dialect: Dialect | None = None) -> list[Record]:
    """What came of each request, of completions by default."""
    decoder = Decoder(dialect or Completions(), streamed=True)
    return [decoder.decode(capture) for capture in driven.captures]


def kinds(driven: Driven) -> list[FailureKind | None]:
    """How each request failed; None: it did not."""
    return [record.failure.kind if record.failure else None for record in records(driven)]


def chunk(data: bytes) -> bytes:
    """A chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def token(text: str = "a", reason: str | None = None) -> bytes:
    """A completions event with one token."""
    finish = b"null" if reason is None else b'"%b"' % reason.encode()
    return b'data: {"choices":[{"index":0,"text":"%b","finish_reason":%b}]}\n\n' % (text.encode(), finish)


def usage(tokens: int) -> bytes:
    """A completions event with the server's counts."""
    return b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":%d}}\n\n' % tokens


DONE = b"data: [DONE]\n\n"


def events(tokens: int) -> Iterator[bytes]:
    """Every event of a response of some tokens."""
    yield from (token() for _ in range(tokens - 1))
    yield token("z", "length")
    yield usage(tokens)
    yield DONE


def stream(tokens: int = 3, gap_s: float = 0.0, end: End = End.KEEP) -> Answer:
    """A whole chunked stream, each event a write of its own."""
    pieces: list[bytes | float] = [HEAD]
    for event in events(tokens):
        if gap_s:
            pieces.append(gap_s)
        pieces.append(chunk(event))
    return Answer([*pieces, LAST], end)


def whole(body: bytes, status: str = "200 OK", kind: str = "application/json", more: str = "") -> bytes:
    """A response with a length."""
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


def api(answer: Callable[[Asked], Answer], owner: str = "llamacpp") -> Callable[[Asked], Answer]:
    """A script that is ready, serves the model `m`, and answers completions by another script."""
    card = b'{"data":[{"id":"m","owned_by":"%b","max_model_len":4096}]}' % owner.encode()
    known = {"GET /health": b"", "GET /v1/models": card, "GET /version": b'{"version":"1"}'}

    def script(asked: Asked) -> Answer:
        method, path = asked.head.split(" ")[:2]
        if method == "POST":
            return answer(asked)
        body = known.get(f"{method} {path}")
        return Answer([whole(b"{}", "404 Not Found") if body is None else whole(body)])

    return script
