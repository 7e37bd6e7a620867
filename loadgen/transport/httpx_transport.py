"""Httpx transport (portable): for proxies, HTTP/2 and platforms without kernel timestamps.

One client with one connection for each slot: a pool shared by hundreds of streams costs time that
grows with their square. Timestamps are taken in user space, so the event loop's lag is in every figure.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any

import httpx

from loadgen.base.clock import SYSTEM_CLOCK, ProcessClock
from loadgen.base.urls import is_loopback
from loadgen.settings.shard_settings import Share
from loadgen.transport.capture import A_READ, KEPT_READS, NO_STAMP, Capture, Counters, Health, Outbox
from loadgen.transport.deadlines import Deadlines, Stream, fail_unanswered, is_closed_while_idle
from loadgen.transport.failure import (
    CANCELLED,
    USER_CANCELLED,
    Failure,
    FailureKind,
    fail_unconnected,
)
from loadgen.transport.memory_room import READ_COST
from loadgen.transport.network import UNKNOWN_LOSSES, Losses, read_losses
from loadgen.transport.sending.gate import Cancelling, Gate, make_cancelling, make_gates
from loadgen.transport.sending.job import Job, TurnExchanges, split_body
from loadgen.transport.tcp_connection import quicken_acks, shorten_ack_delay
from loadgen.wire.http1 import LONGEST_HEAD_BYTES, SWITCHED, SWITCHING, explain_compression

_SHOWN_BYTES = 40  # of what is not HTTP

_HOUSEKEEP_S = 0.02
_JUDGE_S = 0.1
_LONGEST_HEADER = 100  # characters of one that is shown
_RETRY_S = 1.0
_START_S = 0.001
_CANCEL_S = 0.001


@dataclass
class Link:
    """The state of a slot's connection that httpx does not report: whether a byte came, for resends."""

    received: int = 0  # bytes
    closed: bool = False  # by the server, in order
    begin: bytes = b""  # the first few of an answer
    losses: Losses = UNKNOWN_LOSSES  # of the connection, when it was last read

    def tap(self, stream: Any) -> None:
        """Wrap a httpcore network stream to count what is read and acknowledge it at once.

        httpx sends a request in two writes, and after them the kernel would wait with each acknowledgement.
        """
        read, sock = stream.read, stream.get_extra_info("socket")
        self.losses = UNKNOWN_LOSSES
        if sock is not None:
            shorten_ack_delay(sock)

        async def count_read(*arguments: Any, **named: Any) -> bytes:
            data: bytes = await read(*arguments, **named)
            if sock is not None:
                quicken_acks(sock)
                self.losses = read_losses(sock)
            self.received += len(data)
            if len(self.begin) < _SHOWN_BYTES:
                self.begin += data[: _SHOWN_BYTES - len(self.begin)]
            self.closed = not data
            return data

        stream.read = count_read


@dataclass(eq=False)
class Exchange(Stream):
    """A request in flight over httpx, filled in as it proceeds."""

    slot: int
    link: Link
    now_ns: Callable[[], int]
    on_sent: Callable[[Stream], None]
    connect_begin_ns: int = 0
    connect_ns: int = 0
    status: int = 0
    retry_after: str = ""
    got: list[Any] = field(default_factory=list)  # as the wire transport's, without the kernel's time
    size: int = 0  # bytes of the body
    before: int = 0  # bytes that the connection had brought when this was sent
    losses: Losses = UNKNOWN_LOSSES  # of the connection, up to then
    request: bytes = b""  # head and body, where it was built before it was due
    limit: asyncio.Timeout | None = None  # rescheduled to now to give the request up
    given_up: Failure | None = None

    def list_since(self, count: int) -> list[bytes]:
        return self.got[count * A_READ :: A_READ]

    def seen_at(self, read: int) -> int:
        return int(self.got[read * A_READ + 2])

    async def trace(self, event: str, info: dict[str, Any]) -> None:
        """Handle httpcore's trace events: note when it dialed, and when it began to write the request."""
        if event == "connection.connect_tcp.started":
            self.connect_begin_ns = self.now_ns()
        elif event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self.link.tap(info["return_value"])
        elif event.endswith("send_request_headers.started"):
            self.note_sent()

    def note_sent(self) -> None:
        """Set the time of sending, of a resend only its progress, and call `on_sent`.

        The connection's bytes and losses so far are kept, to be subtracted at the end.
        """
        now_ns = self.now_ns()
        if not self.resends:
            self.sent_ns = now_ns
        self.progress_ns, self.before, self.link.begin = now_ns, self.link.received, b""
        self.losses = self.link.losses
        if self.connect_begin_ns:
            self.connect_ns = now_ns - self.connect_begin_ns
        self.on_sent(self)

    @property
    def held_bytes(self) -> int:
        """The bytes of memory that its response takes."""
        return self.size + len(self.got) // A_READ * READ_COST

    @property
    def came(self) -> int:
        """The bytes of a response so far, valid or not."""
        return self.link.received - self.before

    def explain_no_head(self, http2: bool) -> Failure | None:
        """Return the failure of a head too long or, unless `http2`, not HTTP/1; None of any other."""
        begin = self.link.begin
        if self.status:
            return None
        if self.came > LONGEST_HEAD_BYTES:
            detail = f"a response head of more than {LONGEST_HEAD_BYTES} bytes, with any 1xx ones before it"
            return Failure(FailureKind.MALFORMED, detail)
        if not http2 and begin[:5] != b"HTTP/"[: len(begin)]:
            return Failure(FailureKind.MALFORMED, f"not an HTTP response: {begin!r}")
        return None

    def explain_loss(self, error: httpx.TransportError, http2: bool) -> Failure:
        """Make the failure of a request that broke off: unfit to send, unanswered, not HTTP/1, or cut off."""
        if isinstance(error, httpx.LocalProtocolError):  # its words may quote a header
            return Failure(FailureKind.CONNECT, "the request cannot be sent as HTTP")
        ended = isinstance(error, httpx.NetworkError) or self.link.closed
        if ended and not self.came:
            cause = error if isinstance(error, httpx.NetworkError) else None
            return fail_unanswered(self, self.now_ns(), cause)
        malformed = isinstance(error, httpx.RemoteProtocolError) and not ended and not http2
        kind = FailureKind.MALFORMED if malformed else FailureKind.TRUNCATED
        return Failure(kind, str(error) or type(error).__name__)

    def give_up(self, failure: Failure) -> bool:
        """End it at once with this failure; returns False if it had ended already."""
        if self.given_up is not None or self.limit is None:
            return False
        self.given_up = failure
        self.limit.reschedule(asyncio.get_running_loop().time())
        return True

    def follow(self, index: int, intended_ns: int, request: bytes) -> Exchange:
        """Return the exchange of the session's next turn, over the same slot and connection."""
        return Exchange(
            self.slot,
            self.link,
            self.now_ns,
            self.on_sent,
            index=index,
            intended_ns=intended_ns,
            request=request,
        )

    def capture(self, failure: Failure | None, share: Share) -> Capture:
        """Make a capture of the exchange that ends now, without the response's bytes, with `failure` if any.

        Segments lost or late on its connection since it was sent are counted in it.
        """
        lost = self.link.losses.subtract(self.losses)
        return self.make_capture(
            share.number_slot(self.slot),
            self.now_ns(),
            connect_ns=self.connect_ns,
            framed=False,
            status=self.status,
            retry_after=self.retry_after,
            failure=failure,
            out_of_order=lost.out_of_order,
            retransmitted=lost.retransmitted,
            rtt_ns=lost.rtt_ns,
        )


class HttpxTransport:
    """Sends a job's requests over httpx, on the event loop that `new_loop` makes."""

    def __init__(
        self,
        job: Job,
        outbox: Outbox,
        counters: Counters,
        clock: ProcessClock = SYSTEM_CLOCK,
        new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
    ) -> None:
        self.job, self.outbox, self.counters = job, outbox, counters
        self.now_ns, self.cpu_ns, self.new_loop = clock.now_ns, clock.cpu_ns, new_loop
        # One for all clients: to make it takes ten times as long as the rest of a client.
        self.tls = httpx.create_ssl_context(verify=False) if job.target.tls is None else job.target.tls
        self.clients: list[httpx.AsyncClient] = []
        self.idle: deque[tuple[int, int]] = deque()  # slot, when it was freed
        self.spare: list[int] = []  # slots for branches of sessions, of `branches` opened
        self.branches = 0
        self.freed = asyncio.Event()
        self.sent = self.ended = self.reads = self.open_bytes = 0  # bytes: of the answers under way
        self.begin_ns = 0
        self.gates: tuple[Gate, ...] = ()
        self.held_turns = 0  # of sessions under way, which go before a new one
        self.sessions: TurnExchanges | None = None
        self.cancelling = make_cancelling(job)
        self.on_sent = self.cancelling.note_sent if self.cancelling is not None else lambda _: None
        self.under_way: dict[int, Exchange] = {}
        self.links: list[Link] = []
        self.deadlines = Deadlines(job, self.under_way.values, self.now_ns)

    def run(self) -> Health:
        """Send every request and deliver a capture for each; after a stop, for those that were sent."""
        cpu_ns = self.cpu_ns()
        with asyncio.Runner(loop_factory=self.new_loop) as runner:
            runner.run(self._run())
        return Health(
            started_ns=self.begin_ns,
            ended_ns=self.now_ns(),
            cpu_ns=self.cpu_ns() - cpu_ns,
            backlog_bytes=self.outbox.most_bytes,
            stopped_ns=self.deadlines.stopped_ns,
            reconnects=0 if self.sessions is None else self.sessions.reconnects,
            bodies_digest="" if self.sessions is None else self.sessions.bodies_digest(),
        )

    async def _run(self) -> None:
        """Open the slots, wait for the start, send all requests or until a stop, and deliver what is left.

        An exception of a task is raised.
        """
        stop = asyncio.Event()
        asyncio.get_running_loop().add_reader(self.outbox.sock, stop.set)
        for _ in range(self.job.first_slots):
            self.idle.append((self._add_slot(), self.begin_ns))
        while not 0 < (begin_ns := self.job.start.begin_ns(self.now_ns())) <= self.now_ns():
            await asyncio.sleep(_START_S)  # an instant of another process's clock
            if stop.is_set():
                begin_ns = self.now_ns()
                break
        self.begin_ns = begin_ns
        self.gates = make_gates(self.job, self.begin_ns)
        if self.job.sessions is not None:
            self.sessions = self.job.sessions.make_exchanges(self.job, self.begin_ns)
        aside = [asyncio.create_task(self._housekeep()), asyncio.create_task(self._watch())]
        if self.cancelling is not None:
            aside.append(asyncio.create_task(self._cancel(self.cancelling)))
        firing = asyncio.create_task(self._fire())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({firing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        for task in (firing, stopping, *aside):
            task.cancel()
        outcomes = await asyncio.gather(firing, stopping, *aside, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        asyncio.get_running_loop().remove_reader(self.outbox.sock)
        await asyncio.gather(*(client.aclose() for client in self.clients))
        self.counters.publish(self.sent, self.ended, self.reads)

    def _add_slot(self) -> int:
        """Add a slot with a client and a link; return its position."""
        position = len(self.clients)
        self.clients.append(self._make_client(position))
        self.links.append(Link())
        return position

    def _make_client(self, position: int) -> httpx.AsyncClient:
        """Make a slot's client, with one connection, from the slot's source address if there are several.

        Proxies of the environment are not used for a server on this machine.
        """
        target = self.job.target
        source = target.choose_source(position + self.job.share.number)
        limits = httpx.Limits(max_connections=1, max_keepalive_connections=1)
        return httpx.AsyncClient(  # nosec B113 # every request has deadlines of its own
            verify=self.tls,
            http2=self.job.http2,
            trust_env=not is_loopback(target.host),
            timeout=httpx.Timeout(None, connect=self.job.limits.connect_timeout_ns / 1e9),
            limits=limits,
            transport=httpx.AsyncHTTPTransport(
                verify=self.tls, http2=self.job.http2, trust_env=False, limits=limits, local_address=source
            )
            if source
            else None,
        )

    async def _fire(self) -> None:
        """Start each request when it is due, a slot is free and all gates are open.

        Return when all have ended. After the job's duration no more is started.
        """
        offsets_ns = self.job.offsets_ns
        async with asyncio.TaskGroup() as group:
            for position, index in enumerate(self.job.order):
                due_ns = self.begin_ns + int(offsets_ns[position]) if offsets_ns is not None else 0
                while (left_ns := due_ns - self.now_ns()) > 0:  # noqa: ASYNC110  # absolute, never early
                    await asyncio.sleep(left_ns / 1e9)
                if not self.idle and len(self.clients) - self.branches < self.job.most_places:
                    self.idle.append((self._add_slot(), self.begin_ns))
                while self.held_turns or not (self.idle and self._is_open()):
                    await self._wait_for_room()
                if 0 < self.job.duration_ns <= self.now_ns() - self.begin_ns:
                    break
                slot, freed_ns = self.idle.popleft()
                due_ns = due_ns or max(freed_ns, self.begin_ns, *(gate.opened_ns for gate in self.gates))
                exchange = self._make_exchange(slot, index, due_ns)
                for gate in self.gates:
                    gate.note_sent(exchange)
                group.create_task(self._carry_out(exchange))

    def _make_exchange(self, slot: int, index: int, due_ns: int) -> Exchange:
        link = self.links[slot]
        return Exchange(slot, link, self.now_ns, self.on_sent, index=index, intended_ns=due_ns)

    def open_branch(self) -> Exchange:
        """Return an exchange without a request, over a slot for a lane of a session besides its main line."""
        if not self.spare:
            self.branches += 1
            self.spare.append(self._add_slot())
        return self._make_exchange(self.spare.pop(), -1, 0)

    def close_branch(self, exchange: Exchange) -> None:
        """Take back the slot of a lane that is over."""
        self.spare.append(exchange.slot)

    async def pass_gates(self, exchange: Exchange) -> None:
        """Wait until all gates let one more request pass, which then has passed."""
        self.held_turns += 1
        while not self._is_open():
            await self._wait_for_room()
        self.held_turns -= 1
        for gate in self.gates:
            gate.note_sent(exchange)
        self.freed.set()

    def leave_gates(self) -> None:
        """Let another request pass the gates in place of one that has ended, or is not sent after all."""
        for gate in self.gates:
            gate.note_ended(self.now_ns())
            self.freed.set()

    def _is_open(self) -> bool:
        return all(gate.is_open(self.now_ns()) for gate in self.gates)

    async def _wait_for_room(self) -> None:
        """Wait for a free slot, or until a gate that time alone opens."""
        self.freed.clear()
        limits_s = [max(gate.wait_ns(self.now_ns()), 0) / 1e9 for gate in self.gates if self.idle]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(limits_s, default=None)):
                await self.freed.wait()

    async def _carry_out(self, exchange: Exchange) -> None:
        """Send a slot's request, then its session's later turns, and free the slot."""
        if self.sessions is None:
            await self.send_turn(exchange)
        else:
            await self.sessions.run(exchange, self)
        self.idle.append((exchange.slot, self.now_ns()))
        self.freed.set()

    async def send_turn(self, exchange: Exchange) -> Failure | None:
        """Send one request and deliver its capture; return its failure, if known.

        A cancelled one is delivered as such. A slot whose request was given up gets a new client. After a
        failed connection it waits 1 s, if the server had answered or the run has a duration.
        """
        self.sent += 1
        self.counters.publish_sent(self.sent)
        failure: Failure | None = None
        try:
            async with asyncio.timeout(None) as exchange.limit:
                self.under_way[exchange.index] = exchange
                try:
                    failure = await self._send_with_retry(exchange)
                finally:
                    del self.under_way[exchange.index]
        except TimeoutError:
            if exchange.given_up is None:
                raise
            failure = exchange.given_up
        except MemoryError:
            failure = self.job.limits.refuse_for_room(exchange.held_bytes)
        except asyncio.CancelledError:
            self._deliver(exchange, CANCELLED)
            raise
        self._deliver(exchange, failure)
        if exchange.given_up is not None or (failure is not None and failure.kind is FailureKind.MEMORY):
            # A request that is cancelled while its connection is made or closed can leave it in httpcore's
            # pool, neither idle nor closed. The pool has room for one: the slot's next would wait for ever.
            former, self.clients[exchange.slot] = (
                self.clients[exchange.slot],
                self._make_client(exchange.slot),
            )
            await former.aclose()
        exchange.index = -1
        self.ended += 1
        self.leave_gates()
        answered = self.job.duration_ns or self.deadlines.token_ns
        if answered and failure is not None and failure.kind is FailureKind.CONNECT:
            await asyncio.sleep(_RETRY_S)  # do not burn the plan's requests while the server is away
        return failure

    def _make_room(self, read: Exchange) -> Failure | None:
        """Cut the largest response in flight; return the failure if it is `read` itself.

        That one ends by itself, without being cancelled while it closes its connection.
        """
        largest = max(self.under_way.values(), key=lambda each: 0 if each.given_up else each.held_bytes)
        failure = self.job.limits.refuse_for_room(largest.held_bytes)
        if largest is read:
            return failure
        if largest.give_up(failure):
            self._forget(largest)
        return None

    def _forget(self, exchange: Exchange) -> None:
        """Drop a response's bytes but for the first ones, which show what it was."""
        before = exchange.held_bytes
        del exchange.got[KEPT_READS * A_READ :]
        exchange.size = sum(map(len, exchange.got[::A_READ]))
        self.open_bytes -= before - exchange.held_bytes

    def _deliver(self, exchange: Exchange, failure: Failure | None) -> None:
        """Put an exchange's capture into the outbox; after a failure of memory only its first bytes."""
        if failure is not None and failure.kind is FailureKind.MEMORY:
            self._forget(exchange)
        self.open_bytes -= exchange.held_bytes
        capture = exchange.capture(failure, self.job.share)
        self.outbox.put(capture, exchange.size, partial(capture.fill, exchange.got))

    async def _send_with_retry(self, exchange: Exchange) -> Failure | None:
        """Send a request, once more if its idle connection was closed; return its failure, if known yet."""
        try:
            return await self._send_once(exchange)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as error:
            if not exchange.resends:
                exchange.sent_ns = 0
            return fail_unconnected(error)
        except httpx.TransportError as error:
            # The server may have closed an idle connection just as we wrote: sent again, once.
            fresh = exchange.connect_begin_ns or exchange.resends or exchange.came
            if fresh or not is_closed_while_idle(exchange, self.now_ns()):
                return exchange.explain_loss(error, self.job.http2)
        exchange.resends = 1
        return await self._send_with_retry(exchange)

    async def _send_once(self, exchange: Exchange) -> Failure | None:
        """Send a request and read its response; return its failure, if known yet.

        That is another protocol, compression, or a response that is too long or leaves no room: it is cut.
        """
        job, client = self.job, self.clients[exchange.slot]
        request = client.build_request(
            "POST",
            job.target.url,
            content=split_body(exchange.request) or job.body(exchange.index),
            headers=[
                ("content-type", "application/json"),
                ("accept-encoding", "identity"),
                *job.make_own_headers(exchange.index),
                *job.target.headers,
            ],
            extensions={"trace": exchange.trace},
        )
        exchange.note_sent()  # for a proxy that writes no headers of its own
        response = await client.send(request, stream=True)
        try:
            exchange.status = response.status_code
            exchange.retry_after = response.headers.get("retry-after", "")[:_LONGEST_HEADER]
            if exchange.status == SWITCHING:
                return Failure(FailureKind.MALFORMED, SWITCHED)
            if exchange.status == HTTPStatus.OK and (fault := explain_compression(response.headers)):
                return Failure(FailureKind.MALFORMED, fault)
            async for data in response.aiter_raw():
                if exchange.given_up is not None:
                    continue  # it is cancelled where it next waits
                exchange.got += (data, NO_STAMP, self.now_ns())
                exchange.size += len(data)
                self.open_bytes += len(data) + READ_COST
                self.reads += 1
                if exchange.size > job.limits.answer_bytes:
                    self._forget(exchange)
                    return job.limits.refuse_length()
                together = self.open_bytes + self.outbox.waiting_bytes
                if 0 < job.limits.open_bytes < together and (failure := self._make_room(exchange)):
                    return failure
        finally:
            await response.aclose()
        self.deadlines.token_ns = self.now_ns()
        return None

    async def _cancel(self, cancelling: Cancelling) -> None:
        """Give up each request when the plan cancels it, until this task is cancelled."""
        while True:
            for stream in cancelling.take_due(self.now_ns()):
                assert isinstance(stream, Exchange)
                stream.give_up(USER_CANCELLED)
            left_s = cancelling.wait_ns(self.now_ns()) / 1e9
            await asyncio.sleep(min(max(left_s, 0.0), _CANCEL_S))

    async def _watch(self) -> None:
        """Judge requests in flight a few times a second; after a stop of this process extend deadlines."""
        judged_ns = self.now_ns()
        while True:
            await asyncio.sleep(_JUDGE_S)
            late_ns, judged_ns = self.now_ns() - judged_ns - int(_JUDGE_S * 1e9), self.now_ns()
            if not self.deadlines.put_off(late_ns, judged_ns):
                for exchange in self.under_way.values():
                    failure = self.deadlines.find_timeout(exchange, judged_ns)
                    failure = failure or exchange.explain_no_head(self.job.http2)
                    if failure is None and exchange.inspect_ns < judged_ns:
                        exchange.inspect_ns = judged_ns + self.deadlines.inspect_ns
                        failure = self.deadlines.find_stall(exchange, judged_ns)
                    if failure is not None:
                        exchange.give_up(failure)

    async def _housekeep(self) -> None:
        """Deliver captures, build turns ahead and publish the counters, a few at a time, until cancelled."""
        while True:
            while self.outbox.flush_some() or (self.sessions is not None and self.sessions.build_ahead()):  # noqa: ASYNC110
                await asyncio.sleep(0)  # a turn for the streams between two captures
            self.counters.publish(self.sent, self.ended, self.reads)
            await asyncio.sleep(_HOUSEKEEP_S)
