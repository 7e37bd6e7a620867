"""Observe: the server's `/metrics` right before a run, seldom in it, and once it is at rest again.

httpx at most a few times a second, and nothing is parsed before the run is over.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import ssl
import threading
from collections.abc import Container, Coroutine, Iterator
from concurrent.futures import Future

import httpx
from asyncio_throttle.throttler import Throttler

from loadgen import clock
from loadgen.endpoint import exchange
from loadgen.endpoint.discovery import ServerAddress
from loadgen.endpoint.prometheus import SAMPLED, Selection, Snapshot, parse, select
from loadgen.endpoint.server_counters import ServerWindow, window
from loadgen.errors import LoadgenError
from loadgen.telemetry.sensor import LOOKING

_LOOKS_PER_S = 5
_ANSWER_S = 3.0
_REST_S = 4.0  # at most, for the counters to stand still
_BETWEEN_S = 0.2  # two looks that must agree
_FIRST_S, _EVERY_S = 0.5, 1.0
_LEAVE_S = 0.15
_LARGEST_BYTES = 1 << 24
_MOST_SAMPLES = 3600  # when there are more, every other one is dropped, and they are taken half as often


class Observer:
    """What one server says of one run; whatever it answers, the run is none the worse."""

    def __init__(self, access: ServerAddress, tls: ssl.SSLContext | None, model: str = "") -> None:
        self.access, self.tls, self.model = access, tls, model
        self.throttle = Throttler(rate_limit=_LOOKS_PER_S, period=1.0, retry_interval=0.05)
        self.began = Selection(trouble="nobody looked before the run")
        self.samples: list[tuple[float, Selection]] = []
        self.every_s = _EVERY_S
        self.least_s = _ANSWER_S  # the quickest answer took; what others took longer was hardly their writing

    def before(self, rest_s: float = 0.0) -> str:
        """Look right before the run, having waited for the server to be at rest; why it cannot be, if so."""
        self.samples, self.every_s = [], _EVERY_S
        self.began, _ = self._run(self._at_rest(rest_s) if rest_s else self._once())
        return self.began.trouble

    @contextlib.contextmanager
    def sampling(self) -> Iterator[None]:
        """Look at the gauges now and then in a thread of its own, which a fork must not follow."""
        if self.began.trouble:
            yield
            return
        running: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = Future()
        thread = threading.Thread(target=self._sample, args=(running,), name="observe", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads: the run goes on without samples
            yield
            return
        try:
            yield
        finally:
            # It may never have begun, or have ended by itself and closed its loop.
            with contextlib.suppress(RuntimeError, concurrent.futures.TimeoutError):
                loop, task = running.result(_LEAVE_S)
                loop.call_soon_threadsafe(task.cancel)
            thread.join(_LEAVE_S)

    def after(self) -> ServerWindow:
        """The run's window, once nothing runs and the counters stand still, or as far as that comes."""
        if self.began.trouble:
            return ServerWindow(trouble=self.began.trouble)
        ended, rested = self._run(self._at_rest(_REST_S))
        if ended.trouble:
            return ServerWindow(trouble=f"after the run {ended.trouble}")
        samples = [(at_s, parse(selection)) for at_s, selection in self.samples]
        told = [(at_s, snapshot) for at_s, snapshot in samples if not snapshot.trouble]
        return window(parse(self.began), parse(ended), told, self.model, rested)

    def _sample(self, running: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]]) -> None:
        async def sample() -> None:
            task = asyncio.current_task()
            assert task is not None
            running.set_result((asyncio.get_running_loop(), task))
            began_ns = clock.now_ns()
            async with self.access.client(self.tls, _ANSWER_S) as client:
                await asyncio.sleep(_FIRST_S)
                while True:
                    selection = await self._look(client, SAMPLED)
                    self._keep((clock.now_ns() - began_ns) / 1e9, selection)
                    await asyncio.sleep(max(self.every_s, self.least_s / LOOKING))

        # Where there is not even a socket for it, the run goes on without samples.
        with contextlib.suppress(asyncio.CancelledError, OSError, LoadgenError):
            asyncio.run(sample())

    def _keep(self, at_s: float, selection: Selection) -> None:
        self.samples.append((at_s, selection))
        if len(self.samples) > _MOST_SAMPLES:
            del self.samples[1::2]
            self.every_s *= 2

    async def _once(self) -> tuple[Selection, bool]:
        async with self.access.client(self.tls, _ANSWER_S) as client:
            return await self._look(client), True

    async def _at_rest(self, limit_s: float) -> tuple[Selection, bool]:
        """The last look, and whether it found nothing running and what the one before it found."""
        deadline_ns = clock.now_ns() + int(limit_s * 1e9)
        previous = Snapshot()
        async with self.access.client(self.tls, _ANSWER_S) as client:
            while True:
                selection = await self._look(client)
                found = parse(selection)
                if found.trouble:
                    return Selection(trouble=found.trouble), False
                if not found.gauge("running") and found.counters == previous.counters:
                    return selection, True
                if clock.now_ns() >= deadline_ns:
                    return selection, False
                previous = found
                await asyncio.sleep(_BETWEEN_S)

    async def _look(self, client: httpx.AsyncClient, wanted: Container[str] | None = None) -> Selection:
        async with self.throttle:
            asked_ns = clock.now_ns()
        answer = await exchange.ask(client, "GET", "/metrics", _ANSWER_S, _LARGEST_BYTES)
        if answer.trouble:
            return Selection(trouble=answer.why)
        self.least_s = min(self.least_s, (clock.now_ns() - asked_ns) / 1e9)
        return select(answer.status, answer.body, wanted)

    def _run(self, looking: Coroutine[object, object, tuple[Selection, bool]]) -> tuple[Selection, bool]:
        """What a look comes to; in words why there can be none."""
        try:
            return self.access.loop.run(looking)
        except OSError as error:  # not even a socket of ours
            return Selection(trouble=f"/metrics cannot be asked: {error.strerror}"), False
