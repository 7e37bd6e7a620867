"""The public API of a measurement: `loadgen.bench`, `bench_async` and `load`."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Unpack, cast

from msgspec.structs import replace

from loadgen.plan.profile import Profile
from loadgen.report import run_directory
from loadgen.report.run import Place, Run
from loadgen.run import keywords
from loadgen.run.asked_settings import settings
from loadgen.run.background import BackgroundRun
from loadgen.run.bench import attacher, check, seeded
from loadgen.run.keywords import BenchOptions
from loadgen.run.options import Options
from loadgen.run.signals import Interrupts


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended a run: `run` is what was measured until then, None where that is nothing."""

    def __init__(self, run: Run | None) -> None:
        super().__init__("the run was interrupted")
        self.run = run


@keywords.listing(BenchOptions)
def bench(
    base_url: str | Sequence[str] | None = None,
    profile: Place | Profile | None = None,
    **options: Unpack[BenchOptions],
) -> Run:
    """Measure one workload on a server, and return when it has ended; works in any thread, and in a notebook.

    `base_url` is the server's address, or a list of those of servers of one model that share the requests.
    Without it, `preset`, or no option that speaks of a server, has the embedded engine answer, a simulation;
    else http://127.0.0.1:8000 is measured (of a `backend` of SGLang's client its port), as by the command.
    `profile` is the name of a shipped workload, a path to a .toml file, or a Profile; the default is the
    workload of `vllm bench serve`. `options` have the names and meanings of the flags of `loadgen bench`.
    Nothing is printed, no signal handler is installed, and only `run_dir` leaves something on disk.

    Raises LoadgenError where an option is wrong or the server cannot be measured, and Interrupted on Ctrl-C.
    A run that a rule or the server's end cut short is returned: see Run.partial.
    """
    call = _begin(base_url, profile, options)
    try:
        return call.wait()
    except KeyboardInterrupt:
        raise Interrupted(call.partial) from None


@keywords.listing(BenchOptions)
async def bench_async(
    base_url: str | Sequence[str] | None = None,
    profile: Place | Profile | None = None,
    **options: Unpack[BenchOptions],
) -> Run:
    """As `bench`, without blocking the event loop that awaits it.

    Cancelled, it ends the run in order, leaves nothing running, and raises the CancelledError with what was
    measured until then as its attribute `run` (None where that is nothing).
    """
    from asyncio import CancelledError

    call = _begin(base_url, profile, options)
    try:
        return await call.wait_async()
    except CancelledError as error:
        vars(error)["run"] = call.partial
        raise


def _begin(
    base_url: str | Sequence[str] | None, profile: Place | Profile | None, given: BenchOptions
) -> BackgroundRun[Run]:
    options, workload = keywords.parsed(base_url, profile, cast("Mapping[str, Any]", given))
    check(options)
    return BackgroundRun(lambda interrupts: _measure(options, workload, interrupts))


def _measure(options: Options, workload: Profile, interrupts: Interrupts) -> Run:
    """One run in the calling thread; raises LoadgenError, and Stopped where nothing was measured."""
    with ExitStack() as stack:
        written = options.run_dir is not None
        if not written:
            unseen = tempfile.TemporaryDirectory(prefix="loadgen-", ignore_cleanup_errors=True)
            options = replace(options, run_dir=stack.enter_context(unseen))
        asked = settings(options, [workload])
        session = attacher(options)(options, asked, workload, stack, interrupts)
        measured, directory = session.run(workload, seeded(options))
        kept = session.keep(measured, directory) if written else None
    return Run(measured, directory if written else None, kept.errors if kept else ())


def load(directory: Place) -> Run:
    """The run in a directory of `bench`, `Run.save` or the command; of a killed run, what was measured.

    Raises LoadgenError where there is none, it is damaged, or it was written by a newer loadgen.
    """
    return Run(run_directory.load(Path(directory)), Path(directory))
