"""Background: one measurement in a thread of its own, for programs that have signals and loops of theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from signal import SIGINT
from threading import Lock, Thread
from typing import Generic, TypeVar

from loadgen.run.signals import CANCELLED, Interrupts, StopRequest

T = TypeVar("T")
# A signal in the instant in which Python goes to sleep takes effect when it wakes, this much later.
_WAKE_EVERY_S = 0.5


class BackgroundRun(Generic[T]):
    """A call in a thread of its own, which begins when it is waited for and which a request stops in order.

    The thread is needed: a measurement blocks, runs an event loop, and lowers its own priority.
    """

    def __init__(self, measure: Callable[[Interrupts], T]) -> None:
        self._measure, self._request = measure, StopRequest()
        self._future: Future[T] = Future()
        self._over = False
        # Locks, not conditions or futures: only a lock's `acquire` cannot be left half done by Ctrl-C.
        self._claim = Lock()  # taken by the thread, which then makes the call, or by a stop before that
        self._calling = Lock()  # held until the call has ended
        self._calling.acquire()

    def wait(self) -> T:
        """Return what the call returns; raises what it raises.

        A KeyboardInterrupt at any time stops the call, and is raised once it has ended: see `partial`.
        """
        try:
            self._start()
            self._wait_until_over()
        except KeyboardInterrupt:
            self._stop()
            raise
        return self._future.result()

    async def wait_async(self) -> T:
        """Wait without blocking the event loop; a cancellation stops the call, and is raised at its end."""
        self._start()
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
        """What a stopped call returned; None where it never began or failed."""
        failed = not self._future.done() or self._future.exception() is not None
        return None if failed else self._future.result()

    def _start(self) -> None:
        Thread(target=self._call, name="loadgen").start()

    def _call(self) -> None:
        if not self._claim.acquire(blocking=False):  # stopped before it began
            return
        try:
            self._future.set_result(self._measure(self._request))
        except BaseException as error:
            self._future.set_exception(error)
        self._over = True
        self._calling.release()
        del self  # the traceback of an exception holds this frame, which would hold the exception: a cycle

    def _wait_until_over(self) -> None:
        while not self._over:
            self._calling.acquire(timeout=_WAKE_EVERY_S)

    def _stop(self) -> None:
        """Have the call end, if it has begun, and wait for that; each further Ctrl-C is a request as well."""
        begun = not self._claim.acquire(blocking=False)
        while begun and not self._over:
            try:
                self._request.make(SIGINT)
                self._wait_until_over()
            except KeyboardInterrupt:
                continue
