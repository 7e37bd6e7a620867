"""The public API of a measurement: `loadgen.bench`, `bench_async` and `load`."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from signal import SIGINT
from threading import Lock, Thread
from typing import Any, Generic, TypeVar, Unpack, cast

from loadgen.base.errors import UsageError
from loadgen.base.signals import CANCELLED, Interrupts, StopRequest
from loadgen.base.structs import replace
from loadgen.plan.profile import Profile
from loadgen.report import run_directory
from loadgen.report.run import Place, Run
from loadgen.run.attach import attach, collect_settings
from loadgen.run.command import keywords
from loadgen.run.command.bench import check, make_seed
from loadgen.run.command.options import Options
from loadgen.settings.keyword_types import BenchOptions

T = TypeVar("T")
# A signal in the instant in which Python goes to sleep takes effect when it wakes, this much later.
_WAKE_EVERY_S = 0.5


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended a run: `run` is what was measured until then, None where that is nothing."""

    def __init__(self, run: Run | None) -> None:
        super().__init__("the run was interrupted")
        self.run = run


@keywords.add_keyword_signature(BenchOptions)
def bench(
    base_url: str | Sequence[str] | None = None,
    profile: Place | Profile | None = None,
    **options: Unpack[BenchOptions],
) -> Run:
    """Measure one workload on a server, and return when it has ended; works in any thread, and in a notebook.

    `base_url` is the server's address, or a list of those of servers of one model that share the requests.
    Without it, `preset`, or no option that is of a server, has the embedded engine answer, a simulation;
    else http://127.0.0.1:8000 is measured (of a `backend` of SGLang's client its port), as by the command.
    `profile` is the name of a shipped workload, a path to a .toml file, or a Profile; the default is the
    workload of `vllm bench serve`. `options` have the names and meanings of the flags of `loadgen bench`.
    Nothing is printed, no signal handler is installed, and only `run_dir` leaves something on disk.

    Raises LoadgenError where an option is wrong or the server cannot be measured, and Interrupted on Ctrl-C.
    A run that a rule or the server's end cut short is returned: see Run.partial.
    """
    call = _prepare_call(base_url, profile, options)
    try:
        return call.wait()
    except KeyboardInterrupt:
        raise Interrupted(call.partial) from None


@keywords.add_keyword_signature(BenchOptions)
async def bench_async(
    base_url: str | Sequence[str] | None = None,
    profile: Place | Profile | None = None,
    **options: Unpack[BenchOptions],
) -> Run:
    """Measure as `bench` does, without blocking the event loop that awaits it.

    Cancelled, it ends the run in order, leaves nothing running, and raises the CancelledError with what was
    measured until then as its attribute `run` (None where that is nothing).
    """
    from asyncio import CancelledError

    call = _prepare_call(base_url, profile, options)
    try:
        return await call.wait_async()
    except CancelledError as error:
        vars(error)["run"] = call.partial
        raise


def _prepare_call(
    base_url: str | Sequence[str] | None, profile: Place | Profile | None, given: BenchOptions
) -> BackgroundRun[Run]:
    """Check the arguments and return the call, not yet started; raises UsageError, or warns."""
    options, workload = keywords.parse_call(base_url, profile, cast("Mapping[str, Any]", given))
    check(options)
    return BackgroundRun(lambda interrupts: _measure(options, workload, interrupts))


def _measure(options: Options, workload: Profile, interrupts: Interrupts) -> Run:
    """Measure one run in this thread; raises LoadgenError, and Stopped if nothing was measured.

    Without `run_dir` its files are in a temporary directory, removed at the end.
    """
    with ExitStack() as stack:
        written = options.run_dir is not None
        if not written:
            unseen = tempfile.TemporaryDirectory(prefix="loadgen-", ignore_cleanup_errors=True)
            options = replace(options, run_dir=stack.enter_context(unseen))
        asked = collect_settings(options, [workload])
        session = attach(options, asked, workload, stack, interrupts)
        measured, directory = session.run(workload, make_seed(options))
        kept = session.keep(measured, directory) if written else None
    return Run(measured, directory if written else None, kept.errors if kept else ())


def load(directory: Place) -> Run:
    """Load the run in a directory of `bench`, `Run.save` or the command, or what a killed run had measured.

    Raises LoadgenError where there is none, it is damaged, or it was written by a newer loadgen.
    """
    if not isinstance(directory, str | os.PathLike):
        got = type(directory).__name__
        raise UsageError(f"load(): expected a run's directory, got `{got}`: pass its path, a text or a Path")
    return Run(run_directory.load(Path(directory)), Path(directory))


class BackgroundRun(Generic[T]):
    """A call in a thread of its own that another thread can wait for and stop in order.

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
        """Start the call and return its result; raises what it raises.

        A KeyboardInterrupt at any time stops the call, and is raised once it has ended: see `partial`.
        """
        try:
            self._start()
            self._wait_until_over()
        except KeyboardInterrupt:
            begun = not self._claim.acquire(blocking=False)
            while begun and not self._over:  # each further Ctrl-C is a further stop request
                try:
                    self._request.request_stop(SIGINT)
                    self._wait_until_over()
                except KeyboardInterrupt:
                    continue
            raise
        return self._future.result()

    async def wait_async(self) -> T:
        """Start the call and return its result; raises what it raises.

        Each cancellation is a stop request to the call, and the first is raised once that has ended.
        """
        self._start()
        future = asyncio.wrap_future(self._future)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            self._request.request_stop(CANCELLED)
            while not future.done():
                try:
                    await asyncio.wait([future])
                except asyncio.CancelledError:
                    self._request.request_stop(CANCELLED)
            if not future.cancelled():
                future.exception()  # it is not lost: the cancellation stands for it
            raise

    @property
    def partial(self) -> T | None:
        """The result of a stopped call; None if it never began or failed."""
        failed = not self._future.done() or self._future.exception() is not None
        return None if failed else self._future.result()

    def _start(self) -> None:
        Thread(target=self._call, name="loadgen").start()

    def _call(self) -> None:
        """Make the call and keep its result or exception, unless a stop came first."""
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
