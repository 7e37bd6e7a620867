"""A router before several servers: it forwards each request to one of them, and their bytes as they come."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httptools

_READ_BYTES = 1 << 16
_PLAIN = "content-type: text/plain; version=0.0.4\r\n"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Message:
    """An HTTP message that comes in pieces: where it ends is found by httptools."""

    raw: bytearray = field(default_factory=bytearray)
    url: bytes = b""
    complete: bool = False
    closes: bool = False  # with the connection, whose end is then its own

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_message_complete(self) -> None:
        self.complete = True


class Router:
    """Listens at a free port inside `with`, for its metrics at another, as sglang-router does.

    `weights` has how many requests in a row go to each worker of a round; 1 each by default. A worker that
    cannot be reached, or that ends in an answer, gets no more requests: the client's connection is closed
    where a response had begun, else the next worker is asked. With no worker left the response is a 503.
    """

    def __init__(self, workers: Sequence[str], weights: Sequence[int] = ()) -> None:
        self.workers = [worker.rstrip("/") for worker in workers]
        weights = weights or [1] * len(self.workers)
        self.turns = [w for w, times in zip(self.workers, weights, strict=True) for _ in range(times)]
        self.sent: Counter[str] = Counter()  # POST requests by worker, those that failed included
        self.active: Counter[str] = Counter()
        self.outcomes: Counter[tuple[str, str]] = Counter()  # by worker, and success or failure
        self.requests: Counter[str] = Counter()  # by path
        self.healthy = dict.fromkeys(self.workers, True)
        self.base_url = self.metrics_url = ""
        self._next = 0
        self._loop = asyncio.new_event_loop()
        self._ready, self._over = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Router:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    def exposition(self) -> str:
        """The counters as sglang-router words them."""
        route = 'router_type="http",backend_type="regular",connection_mode="http",model="m"'
        endpoint = {path: path.removeprefix("/v1/").split("/")[0] for path in self.requests}
        families: dict[str, tuple[str, Mapping[str, int]]] = {
            "smg_router_requests_total": (
                "counter",
                {f'{route},endpoint="{endpoint[path]}"': n for path, n in self.requests.items()},
            ),
            "smg_worker_cb_outcomes_total": (
                "counter",
                {f'worker="{worker}",outcome="{how}"': n for (worker, how), n in self.outcomes.items()},
            ),
            "smg_worker_requests_active": ("gauge", {f'worker="{w}"': self.active[w] for w in self.workers}),
            "smg_worker_health": ("gauge", {f'worker="{w}"': int(ok) for w, ok in self.healthy.items()}),
        }
        return "\n".join(
            line
            for name, (kind, samples) in families.items()
            for line in (
                f"# TYPE {name} {kind}",
                *(f"{name}{{{labels}}} {n}" for labels, n in samples.items()),
            )
        )

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._listen())
        self._loop.close()

    async def _listen(self) -> None:
        routing = await asyncio.start_server(self._tracked(self._route), "127.0.0.1", 0)
        metrics = await asyncio.start_server(self._tracked(self._expose), "127.0.0.1", 0)
        self.base_url, self.metrics_url = (
            "http://{}:{}".format(*server.sockets[0].getsockname()[:2]) for server in (routing, metrics)
        )
        self.metrics_url += "/metrics"
        self._ready.set()
        await self._over.wait()
        routing.close()
        metrics.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @staticmethod
    def _tracked(serve: Serve) -> Serve:
        """A handler whose connection is closed when it ends, however it does."""

        async def serve_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, asyncio.CancelledError), contextlib.closing(writer):
                await serve(reader, writer)

        return serve_connection

    async def _expose(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await _read_request(reader) is not None:
            writer.write(_whole("200 OK", self.exposition().encode() + b"\n", _PLAIN))
            await writer.drain()

    async def _route(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (request := await _read_request(reader)) is not None:
            counted = request.raw.startswith(b"POST")
            if counted:
                self.requests[httptools.parse_url(request.url).path.decode()] += 1
            begun = ended = False
            for worker in self._candidates(counted):
                begun, ended = await self._forward(worker, request, writer, counted)
                if writer.is_closing():
                    return
                self.healthy[worker] = ended
                if counted:
                    self.outcomes[worker, "success" if ended else "failure"] += 1
                if begun:
                    break
            if not begun:
                writer.write(_whole("503 Service Unavailable", b'{"error":{"message":"no worker"}}'))
                await writer.drain()
            if (begun and not ended) or request.closes:
                return

    def _candidates(self, counted: bool) -> list[str]:
        """The healthy workers, from the one whose turn it is on; a control request takes no turn."""
        at = self._next % len(self.turns)
        self._next += counted
        return [worker for worker in dict.fromkeys(self.turns[at:] + self.turns[:at]) if self.healthy[worker]]

    async def _forward(
        self, worker: str, request: Message, writer: asyncio.StreamWriter, counted: bool
    ) -> tuple[bool, bool]:
        """Pass a request on and its answer back; whether any of that came, and whether all of it did."""
        parts = urlsplit(worker)
        try:
            from_worker, to_worker = await asyncio.open_connection(parts.hostname, parts.port)
        except OSError:
            return False, False
        answer = Message()
        parser = httptools.HttpResponseParser(answer)
        self.sent[worker] += counted
        self.active[worker] += counted
        begun = False
        try:
            to_worker.write(bytes(request.raw))
            while not answer.complete and (data := await from_worker.read(_READ_BYTES)):
                parser.feed_data(data)
                writer.write(data)
                begun = True
                await writer.drain()
        except OSError:
            pass  # either of the two is gone
        finally:
            self.active[worker] -= counted
            to_worker.close()
        return begun, answer.complete


async def _read_request(reader: asyncio.StreamReader) -> Message | None:
    """The next request, whole; None if the client is gone."""
    request = Message()
    parser = httptools.HttpRequestParser(request)
    while not request.complete:
        if not (data := await reader.read(_READ_BYTES)):
            return None
        request.raw += data
        parser.feed_data(data)
    request.closes = not parser.should_keep_alive()
    return request


def _whole(status: str, body: bytes, more: str = "content-type: application/json\r\n") -> bytes:
    return f"HTTP/1.1 {status}\r\n{more}content-length: {len(body)}\r\n\r\n".encode() + body
