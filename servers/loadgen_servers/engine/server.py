"""The engine in real time: requests in from the sockets, a step's tokens out when the step ends."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from loadgen_servers import http_server
from loadgen_servers.engine import openai_responses
from loadgen_servers.engine.anthropic_messages import CHOICE, PATH, MessagesDialect, refuse
from loadgen_servers.engine.messages import CHOICES, Dialect, Reply, reply_for
from loadgen_servers.engine.metrics import Metrics
from loadgen_servers.engine.openai_responses import ResponsesDialect, write_chat
from loadgen_servers.engine.request import GenerationRequest, Refusal, ServedModel, parse
from loadgen_servers.engine.scheduler import Scheduler, Sequence, Step, StepOutput
from loadgen_servers.http_server import Connection, Port, Request

VERSION = "0.1.0"
_METRICS_TYPE = "text/plain; version=1.0.0; charset=utf-8"


class Stream(msgspec.Struct):
    """One answer in progress; a sequence's owner."""

    connection: Connection
    reply: Reply
    close: bool


@dataclass
class Engine:
    """Serves until stopped, in one thread; the only class that knows both the sockets and the scheduler."""

    port: Port
    scheduler: Scheduler
    served: ServedModel
    preset: str
    interval: int = 1
    stopping: bool = False
    step: Step | None = None
    streams: dict[Connection, Sequence] = field(default_factory=dict)
    pipelined: dict[Connection, deque[Request]] = field(default_factory=dict)
    metrics: Metrics = field(init=False)
    dialects: dict[str, Dialect] = field(init=False)
    routes: dict[tuple[str, str], Callable[[], bytes]] = field(init=False)
    created_s: int = field(default_factory=lambda: int(time.time()))
    now_ns: Callable[[], int] = time.monotonic_ns  # the clock of `port`

    def __post_init__(self) -> None:
        model, drafts = self.served.model, bool(self.served.acceptance)
        options = (model, self.created_s, self.interval, drafts, self.served.role_at_once)
        self.metrics = Metrics(model, accepted=[0] * len(self.served.acceptance))
        self.dialects = {path: Dialect(choice, *options) for path, choice in CHOICES.items()}
        self.dialects[PATH] = MessagesDialect(CHOICE, *options)
        self.dialects[openai_responses.PATH] = ResponsesDialect(openai_responses.CHOICE, *options)
        self.routes = {
            ("GET", "/health"): lambda: http_server.response(b""),
            ("GET", "/ping"): lambda: http_server.response(b""),
            ("POST", "/ping"): lambda: http_server.response(b""),
            ("GET", "/version"): lambda: _json({"version": VERSION, "engine": "loadgen-engine"}),
            ("GET", "/v1/models"): self._models,
            ("GET", "/metrics"): lambda: http_server.response(
                self.metrics.text(self.scheduler), kind=_METRICS_TYPE
            ),
            ("POST", "/reset_prefix_cache"): lambda: _json({"success": self.scheduler.cache.reset()}),
        }

    def stop(self) -> None:
        """End after the current iteration; running answers end with finish_reason "abort"."""
        self.stopping = True

    def run(self) -> None:
        """Serve until stopped."""
        while not self.stopping:
            if self.step is None:
                self.step = self.scheduler.begin(self.now_ns())
            due_ns = self.scheduler.wakes_ns() if self.step is None else self.step.end_ns
            if due_ns is None:
                self.port.serve(-1, self.handle, self.gone)
                continue
            due = self.port.wait(due_ns)
            self.port.serve(0.0, self.handle, self.gone)
            if due and self.step is not None:
                self.end_step(self.step)
        for sequence in list(self.streams.values()):
            stream = _stream(sequence)
            produced = sequence.produced(self.scheduler.step_number)
            self._send(stream.connection, stream.reply.last(produced, "abort", self._cached_tokens(sequence)))

    def end_step(self, step: Step) -> None:
        """End a step that is due: begin the next one, and send this one's tokens."""
        now_ns = self.now_ns()
        ended = self.scheduler.end(step, now_ns)
        self.metrics.record(ended, now_ns)
        # The next step starts where this one was due to end, even if this code runs late: deadlines never
        # drift. Only when a whole step was missed does the schedule start again, and the step counts as late.
        start_ns = step.end_ns
        if now_ns - step.end_ns > step.end_ns - step.start_ns:
            start_ns = now_ns
            self.metrics.late_steps += 1
        # Planned before the tokens are sent: as in a real engine, a request that answers one of them comes
        # too late for the step that has begun.
        self.step = self.scheduler.begin(start_ns)
        self._write(ended)

    def _write(self, ended: StepOutput) -> None:
        number = ended.number
        for sequences in (ended.decoded, ended.first):
            for sequence in sequences:
                stream: Stream = sequence.owner  # type: ignore[assignment]  # no check: this is the hot path
                n, ends = number - sequence.first_step, sequence.steps.ends
                data = stream.reply.token(ends[n] if ends else n + 1)
                if data:
                    connection = stream.connection
                    if not connection.send(data) or connection.pending:
                        self._blocked(connection)
        for sequence in ended.finished:
            stream = _stream(sequence)
            connection = stream.connection
            del self.streams[connection]
            own = _own_metrics(sequence) if self.served.request_metrics else b""
            cached, reason = self._cached_tokens(sequence), sequence.finish_reason
            self._send(connection, stream.reply.last(sequence.output_tokens, reason, cached, own))
            self._after_answer(connection, stream.close)

    def _cached_tokens(self, sequence: Sequence) -> int | None:
        return sequence.cached_tokens if self.served.cached_details else None

    def _send(self, connection: Connection, data: bytes) -> None:
        if not connection.send(data) or connection.pending:
            self._blocked(connection)

    def _blocked(self, connection: Connection) -> None:
        """Handle a client that reads too slowly, or is gone."""
        if connection.pending and connection.flush():
            self.port.flush_later(connection)
            return
        self.port.drop(connection)
        self.gone(connection)

    def _after_answer(self, connection: Connection, close: bool) -> None:
        """Close the connection, or answer the requests that were queued behind the answer."""
        if close:
            self.pipelined.pop(connection, None)
            self.port.close_when_sent(connection)
            return
        if not self.pipelined:
            return
        queued = self.pipelined.pop(connection, deque())
        while queued and connection not in self.streams:
            request = queued.popleft()
            if not self._answer(connection, request) and request.close:
                self.port.close_when_sent(connection)
                return
        if queued:
            self.pipelined[connection] = queued

    def gone(self, connection: Connection) -> None:
        """Abort the sequence of a client that went away; its KV is free at once."""
        self.pipelined.pop(connection, None)
        sequence = self.streams.pop(connection, None)
        if sequence is not None:
            self.scheduler.abort(sequence)
            self.metrics.finished["abort"] += 1

    def handle(self, connection: Connection, request: Request) -> None:
        """Answer a request, or queue it behind the running answer on its connection."""
        if connection in self.streams:
            self.pipelined.setdefault(connection, deque()).append(request)
        elif not self._answer(connection, request):
            self._after_answer(connection, request.close)

    def _answer(self, connection: Connection, request: Request) -> bool:
        """Answer at once (False), or start generating (True), which ends in `_write`."""
        dialect = self.dialects.get(request.path)
        if dialect is None or request.method != "POST":
            self._send(connection, self._control(request))
            return False
        try:
            limited = request.path == PATH
            responds = request.path == openai_responses.PATH
            chat = limited or responds or request.path == "/v1/chat/completions"
            body = write_chat(request.body) if responds else request.body
            generation = parse(body, chat, self.served, limited)
        except Refusal as refusal:
            self._send(connection, refuse(refusal) if request.path == PATH else _refused(refusal))
            return False
        stream = Stream(connection, reply_for(dialect, generation.response), request.close)
        self._accept(stream, request, generation)
        return True

    def _accept(self, stream: Stream, request: Request, generation: GenerationRequest) -> None:
        prompt_tokens = generation.response.prompt_tokens
        cache = self.scheduler.cache
        sequence = Sequence(
            prompt_tokens=prompt_tokens,
            output_tokens=generation.output_tokens,
            reserved_tokens=prompt_tokens + generation.max_tokens,
            arrived_ns=request.received_ns,
            finish_reason=generation.finish_reason,
            owner=stream,
            request_id=request.headers.get("x-request-id", ""),
            steps=generation.steps,
            blocks=generation.blocks(cache.block_size) if cache.enabled else (),
        )
        self.streams[stream.connection] = sequence
        self.scheduler.add(sequence)
        start = stream.reply.start()
        if start:
            self._send(stream.connection, start)

    def _control(self, request: Request) -> bytes:
        route = self.routes.get((request.method, request.path))
        if route is not None:
            return route()
        if request.path in {path for _, path in self.routes} | self.dialects.keys():
            return _json({"detail": "Method Not Allowed"}, "405 Method Not Allowed")
        return _json({"detail": "Not Found"}, "404 Not Found")

    def _models(self) -> bytes:
        card = {
            "id": self.served.model,
            "object": "model",
            "created": self.created_s,
            "owned_by": "loadgen-engine",
            "root": self.preset,  # by which clients recognize simulated answers
            "parent": None,
            "max_model_len": self.served.max_model_len,
        }
        return _json({"object": "list", "data": [card]})


def _stream(sequence: Sequence) -> Stream:
    assert isinstance(sequence.owner, Stream)
    return sequence.owner


def _own_metrics(sequence: Sequence) -> bytes:
    """Make what vLLM reports of one request: its `time_to_first_token_ms` begins when it was scheduled."""
    decode_ms, gaps = (sequence.last_ns - sequence.first_ns) / 1e6, sequence.output_tokens - 1
    seconds = (sequence.last_ns - sequence.scheduled_ns) / 1e9
    return msgspec.json.encode(
        {
            "time_to_first_token_ms": (sequence.first_ns - sequence.scheduled_ns) / 1e6,
            "generation_time_ms": decode_ms,
            "queue_time_ms": (sequence.scheduled_ns - sequence.queued_ns) / 1e6,
            "mean_itl_ms": decode_ms / gaps if gaps else None,
            "tokens_per_second": sequence.output_tokens / seconds if seconds else None,
        }
    )


def _json(value: object, status: str = "200 OK") -> bytes:
    return http_server.response(msgspec.json.encode(value), status)


def _refused(refusal: Refusal) -> bytes:
    if refusal.in_stream:
        events = http_server.event(refusal.body()) + http_server.event(b"[DONE]")
        return http_server.STREAM_HEAD + events + http_server.STREAM_END
    return http_server.response(refusal.body(), refusal.status)
