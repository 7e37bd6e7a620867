"""Background: one measurement in a thread of its own, for programs that have signals and loops of theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from signal import SIGINT
from typing import Generic, TypeVar

from loadgen.run.signals import CANCELLED, Interrupts, StopRequest

T = TypeVar("T")


class BackgroundRun(Generic[T]):
    """Something under way in a thread of its own, which a request stops in order.

    The thread is needed: a measurement blocks, runs an event loop, and lowers its own priority.
    """

    def __init__(self, measure: Callable[[Interrupts], T]) -> None:
        self._request = StopRequest()
        thread = ThreadPoolExecutor(1, thread_name_prefix="loadgen")
        try:
            self._future = thread.submit(measure, self._request)
        except KeyboardInterrupt:  # the thread may have begun
            self._request.make(SIGINT)
            raise
        finally:
            thread.shutdown(wait=False)

    def wait(self) -> T:
        """What it comes to; raises what it raises.

        A KeyboardInterrupt meanwhile stops it, and is raised once it has ended: see `partial`.
        """
        try:
            return self._future.result()
        except KeyboardInterrupt:
            self._request.make(SIGINT)
            while not self._future.done():
                try:
                    wait_for([self._future])
                except KeyboardInterrupt:
                    self._request.make(SIGINT)
            raise

    async def wait_async(self) -> T:
        """As `wait`; a cancellation stops it, and is raised once it has ended."""
        future = asyncio.wrap_future(self._future)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            self._request.make(CANCELLED)
            while not future.done():
                try:
                    await asyncio.wait([future])
                except asyncio.CancelledError:
                    self._request.make(CANCELLED)
            if not future.cancelled():
                future.exception()  # it is not lost: the cancellation stands for it
            raise

    @property
    def partial(self) -> T | None:
        """What a stopped call came to; None where there is nothing, or it failed."""
        failed = not self._future.done() or self._future.exception() is not None
        return None if failed else self._future.result()
