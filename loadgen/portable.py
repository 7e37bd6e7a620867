"""The portable transport: httpx, for proxies, HTTP/2 and platforms without kernel stamps.

One client with one connection for each slot: a pool shared by hundreds of streams costs time that
grows with their square. Stamps are user space, so the event loop's lag is in every figure.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

import httpx

from loadgen import clock
from loadgen.capture import NO_STAMP, Capture, int64s, joined
from loadgen.channel import Outbox
from loadgen.failure import Failure, FailureKind
from loadgen.job import Counters, Health, Job

_HOUSEKEEP_S = 0.02
_RETRY_S = 1.0


def is_loopback(host: str) -> bool:
    """Whether a host is this machine: then no proxy of the environment is meant for it."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass
class _Exchange:
    """One request under way, filled in as it goes."""

    index: int
    slot: int
    intended_ns: int
    sent_ns: int = 0
    connect_begin_ns: int = 0
    connect_ns: int = 0
    resends: int = 0
    status: int = 0
    reads: list[bytes] = field(default_factory=list)
    seen_ns: list[int] = field(default_factory=list)

    async def trace(self, event: str, info: dict[str, Any]) -> None:
        """httpcore's own events: when it dialed, and when it was about to write the request."""
        if event == "connection.connect_tcp.started":
            self.connect_begin_ns = clock.now_ns()
        elif event.endswith("send_request_headers.started"):
            self.sent_ns = clock.now_ns()
            if self.connect_begin_ns:
                self.connect_ns = self.sent_ns - self.connect_begin_ns

    @property
    def unanswered(self) -> bool:
        """Whether the server may have closed an idle connection just as we wrote; sent again once."""
        return not (self.connect_begin_ns or self.resends or self.status)

    def capture(self, failure: Failure | None) -> Capture:
        """What is known of the exchange."""
        raw, read_lengths = joined(self.reads)
        return Capture(
            index=self.index,
            slot=self.slot,
            intended_ns=self.intended_ns,
            sent_ns=self.sent_ns,
            end_ns=clock.now_ns(),
            connect_ns=self.connect_ns,
            resends=self.resends,
            framed=False,
            status=self.status,
            failure=failure,
            raw=raw,
            read_lengths=read_lengths,
            seen_ns=int64s(self.seen_ns),
            kernel=NO_STAMP * len(self.reads),
        )


class Portable:
    """One run of a job over httpx."""

    def __init__(self, job: Job, outbox: Outbox, counters: Counters) -> None:
        self.job, self.outbox, self.counters = job, outbox, counters
        self.clients: list[httpx.AsyncClient] = []
        self.idle: deque[tuple[int, int]] = deque()  # slot, when it was freed
        self.freed = asyncio.Event()
        self.sent = self.ended = self.reads = 0
        self.begin_ns = self.token_ns = 0
        self.queued: dict[int, tuple[_Exchange, asyncio.Timeout]] = {}  # without a token so far

    def run(self) -> Health:
        """Send every request and deliver a capture for each; after a stop, for those that were sent."""
        cpu_ns = time.process_time_ns()
        asyncio.run(self._run())
        return Health(
            started_ns=self.begin_ns,
            ended_ns=clock.now_ns(),
            cpu_ns=time.process_time_ns() - cpu_ns,
            clock_step_ns=0,  # nothing here is stamped by a clock that is stepped
            late_bodies=0,
            backlog_bytes=self.outbox.most_bytes,
        )

    async def _run(self) -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_reader(self.outbox.sock, stop.set)
        for _ in range(self.job.first_slots):
            self._add_client()
        self.begin_ns = clock.now_ns()
        housekeeping = asyncio.create_task(self._housekeep())
        firing = asyncio.create_task(self._fire())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({firing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        for task in (firing, stopping, housekeeping):
            task.cancel()
        outcomes = await asyncio.gather(firing, stopping, housekeeping, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        asyncio.get_running_loop().remove_reader(self.outbox.sock)
        await asyncio.gather(*(client.aclose() for client in self.clients))
        self.counters.publish(self.sent, self.ended, self.reads)

    def _add_client(self) -> None:
        target = self.job.target
        client = httpx.AsyncClient(  # nosec B113 # every request has deadlines of its own
            verify=target.tls if target.tls is not None else False,
            http2=self.job.http2,
            trust_env=not is_loopback(target.host),
            timeout=None,
            limits=httpx.Limits(max_connections=1, max_keepalive_connections=1),
        )
        self.idle.append((len(self.clients), self.begin_ns))
        self.clients.append(client)

    async def _fire(self) -> None:
        """Start each request when it is due and a slot is free."""
        offsets_ns = self.job.offsets_ns
        async with asyncio.TaskGroup() as group:
            for index in range(self.job.count):
                if offsets_ns is not None:
                    await _sleep_until(self.begin_ns + int(offsets_ns[index]))
                if not self.idle and len(self.clients) < self.job.most_slots:
                    self._add_client()
                while not self.idle:
                    self.freed.clear()
                    await self.freed.wait()
                if 0 < self.job.duration_ns <= clock.now_ns() - self.begin_ns:
                    break
                slot, freed_ns = self.idle.popleft()
                due_ns = max(freed_ns, self.begin_ns)
                if offsets_ns is not None:
                    due_ns = self.begin_ns + int(offsets_ns[index])
                group.create_task(self._exchange(_Exchange(index, slot, due_ns)))

    async def _exchange(self, exchange: _Exchange) -> None:
        limit_ns = self.job.limits.request_timeout_ns
        self.sent += 1
        failure: Failure | None = None
        try:
            async with asyncio.timeout(limit_ns / 1e9 if limit_ns else None):
                try:
                    failure = await self._stream(exchange)
                except (httpx.NetworkError, httpx.RemoteProtocolError):
                    if not exchange.unanswered:
                        raise
                    exchange.resends = 1
                    failure = await self._stream(exchange)
        except TimeoutError:
            failure = Failure(FailureKind.TIMEOUT, "no end within --request-timeout")
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as error:
            exchange.sent_ns = 0
            failure = Failure(FailureKind.CONNECT, str(error))
        except httpx.TransportError as error:
            failure = Failure(FailureKind.TRUNCATED, str(error) or type(error).__name__)
        except asyncio.CancelledError:
            self.outbox.put(exchange.capture(Failure(FailureKind.CANCELLED, "stopped while under way")))
            raise
        self.outbox.put(exchange.capture(failure))
        self.ended += 1
        if self.job.duration_ns and failure is not None and failure.kind is FailureKind.CONNECT:
            await asyncio.sleep(_RETRY_S)  # there is time: do not burn the plan's requests on this slot
        self.idle.append((exchange.slot, clock.now_ns()))
        self.freed.set()

    async def _stream(self, exchange: _Exchange) -> Failure | None:
        """Read one response; the stall deadline moves with each token, not with each byte."""
        job, stall_ns = self.job, self.job.limits.stall_timeout_ns
        client = self.clients[exchange.slot]
        request = client.build_request(
            "POST",
            job.target.url,
            content=job.body(exchange.index),
            headers=[
                ("content-type", "application/json"),
                ("accept-encoding", "identity"),
                ("x-request-id", f"{job.request_id_prefix}{exchange.index}"),
                *job.target.headers,
            ],
            extensions={"trace": exchange.trace},
        )
        exchange.sent_ns = clock.now_ns()  # for a proxy that writes no headers of its own
        loop, scanned = asyncio.get_running_loop(), 0
        try:
            async with asyncio.timeout(None) as deadline:
                self.queued[exchange.index] = (exchange, deadline)
                response = await client.send(request, stream=True)
                try:
                    exchange.status = response.status_code
                    async for data in response.aiter_raw():
                        exchange.seen_ns.append(clock.now_ns())
                        exchange.reads.append(data)
                        self.reads += 1
                        if stall_ns and job.token_seen(b"".join(exchange.reads[scanned:])):
                            scanned, self.token_ns = len(exchange.reads), clock.now_ns()
                            self.queued.pop(exchange.index, None)
                            deadline.reschedule(loop.time() + stall_ns / 1e9)
                finally:
                    await response.aclose()
        except TimeoutError:
            if not deadline.expired():
                raise
            return Failure(FailureKind.STALL, "no token within --stall-timeout")
        finally:
            self.queued.pop(exchange.index, None)
        return None

    def _end_stalled(self) -> None:
        """Requests without a first token may be queued: they stall when nobody else gets one either."""
        stall_ns, now_ns = self.job.limits.stall_timeout_ns, clock.now_ns()
        for exchange, deadline in self.queued.values() if stall_ns else ():
            if now_ns - max(exchange.sent_ns, self.token_ns) > stall_ns and not deadline.expired():
                deadline.reschedule(asyncio.get_running_loop().time())

    async def _housekeep(self) -> None:
        """Hand captures over and publish the counters, a few at a time."""
        while True:
            while self.outbox.flush_some():  # noqa: ASYNC110  # a turn for the streams between two captures
                await asyncio.sleep(0)
            self.counters.publish(self.sent, self.ended, self.reads)
            self._end_stalled()
            await asyncio.sleep(_HOUSEKEEP_S)


async def _sleep_until(deadline_ns: int) -> None:
    while (left_ns := deadline_ns - clock.now_ns()) > 0:  # noqa: ASYNC110  # absolute, never early
        await asyncio.sleep(left_ns / 1e9)
