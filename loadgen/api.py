"""The public API: measure, load, compare and audit from Python. Use it by the names in `loadgen`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

import msgspec
from msgspec.structs import replace

from loadgen.errors import UsageError
from loadgen.results import run_directory
from loadgen.results.run import Place, Run, Verdict
from loadgen.session import keywords
from loadgen.session.attach import attach, settings
from loadgen.session.background import Call
from loadgen.session.bench import check, seeded
from loadgen.session.keywords import BenchOptions
from loadgen.session.options import Options
from loadgen.session.progress import Frontend
from loadgen.workload.profile import Profile

if TYPE_CHECKING:
    from loadgen.analysis.audit.command import Audited
    from loadgen.analysis.comparison import model
    from loadgen.analysis.importers.sources import Sources
    from loadgen.analysis.run_summary import Reported
    from loadgen.validity.campaign_cell import FailedCell


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended a run: `run` is what was measured until then, None where that is nothing."""

    def __init__(self, run: Run | None) -> None:
        super().__init__("the run was interrupted")
        self.run = run


def bench(
    base_url: str | None = None,
    profile: Place | Profile | None = None,
    **options: Unpack[BenchOptions],
) -> Run:
    """Measure one workload on a server, and return when it has ended; works in any thread, and in a notebook.

    `base_url` is the server's address; without it the embedded engine answers, with the timing of `preset`.
    `profile` is the name of a shipped workload, a path to a .toml file, or a Profile; the default is the
    workload of `vllm bench serve`. `options` have the names and meanings of the flags of `loadgen bench`.
    Nothing is printed, no signal handler is installed, and only `run_dir` leaves something on disk.

    Raises LoadgenError where an option is wrong or the server cannot be measured, and Interrupted on Ctrl-C.
    A run that a rule or the server's end cut short is returned: see Run.partial.
    """
    call = _begin(base_url, profile, options)
    try:
        return _complete(call.wait())
    except KeyboardInterrupt:
        raise Interrupted(call.partial) from None


async def bench_async(
    base_url: str | None = None,
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
        return _complete(await call.wait_async())
    except CancelledError as error:
        vars(error)["run"] = call.partial
        raise


def _begin(base_url: str | None, profile: Place | Profile | None, given: BenchOptions) -> Call[Run]:
    options, workload = keywords.parsed(base_url, profile, cast("Mapping[str, Any]", given))
    check(options)
    return Call(lambda frontend: _measure(options, workload, frontend))


def _complete(run: Run | None) -> Run:
    assert run is not None  # only a request to stop leaves nothing
    return run


def _measure(options: Options, workload: Profile, frontend: Frontend) -> Run:
    """One run in the calling thread; raises LoadgenError, and Stopped where nothing was measured."""
    with ExitStack() as stack:
        written = options.run_dir is not None
        if not written:
            unseen = tempfile.TemporaryDirectory(prefix="loadgen-", ignore_cleanup_errors=True)
            options = replace(options, run_dir=stack.enter_context(unseen))
        session = attach(options, settings(options, [workload]), workload, stack, frontend)
        measured, directory = session.run(workload, seeded(options))
        kept = session.keep(measured, directory) if written else None
    return Run(measured, directory if written else None, kept.errors if kept else ())


def load(directory: Place) -> Run:
    """The run in a directory of `bench`, `Run.save` or the command; what was measured of a killed one.

    Raises LoadgenError where there is none, it is damaged, or it was written by a newer loadgen.
    """
    return Run(run_directory.load(Path(directory)), Path(directory))


class Comparison(msgspec.Struct, frozen=True):
    """Runs side by side: a table a load, each row with an effect and a verdict per figure.

    `messages` are lines on what could not be read, or was named twice.
    """

    tables: tuple[model.Comparison, ...]
    messages: tuple[str, ...] = ()

    def text(self) -> str:
        """The tables as `loadgen compare` prints them."""
        from loadgen.analysis.comparison import render

        return render.text(self.tables)

    def markdown(self) -> str:
        """The tables for a pull request."""
        from loadgen.analysis.comparison import render

        return render.markdown(self.tables)

    def json(self) -> dict[str, Any]:
        """Everything, p-values too."""
        from loadgen.analysis.comparison import export

        return export.json(self.tables)


def compare(
    runs: Sequence[Run | Place] | Mapping[str, Run | Place | Sequence[Run | Place]],
    *,
    baseline: str = "",
    margin: float | None = None,
    alpha: float = 0.05,
    headline: str = "",
    allow_unlike: bool = False,
    hardware: str | None = None,
    bandwidth: float | None = None,
) -> Comparison:
    """Compare runs, run directories, campaigns and result files of other clients.

    A mapping names the rows: {"before": [run, run], "after": [run, run]}; otherwise a row is a checkpoint.
    `margin` is what counts as equivalent, 0.02 for 2 %, and `alpha` the chance of a false verdict;
    docs/comparing.md says how differences are judged. Raises LoadgenError where there is nothing to compare
    or an option is wrong.
    """
    from loadgen.analysis.comparison import campaigns, command
    from loadgen.analysis.comparison.ceilings import Hardware

    read, places = _sources(runs)
    asked = command.Asked(baseline, margin, alpha, headline, allow_unlike, Hardware(hardware, bandwidth))
    return Comparison(tuple(command.compared(read, asked, campaigns.told(places))), read.troubles)


def _sources(
    runs: Sequence[Run | Place] | Mapping[str, Run | Place | Sequence[Run | Place]],
) -> tuple[Sources, list[str]]:
    """Everything that is named, under its row's name where it has one, and the places among it."""
    from loadgen.analysis import run_summary
    from loadgen.analysis.importers import sources
    from loadgen.analysis.importers.sources import Sources

    if isinstance(runs, str | os.PathLike | Run):
        raise UsageError("expected a list of runs and places, or a mapping from names to them: write [run]")
    groups = runs.items() if isinstance(runs, Mapping) else [("", runs)]
    found: list[Reported] = []
    troubles: list[str] = []
    failures: list[FailedCell] = []
    places: list[str] = []
    for name, group in groups:
        for one in [group] if isinstance(group, str | os.PathLike | Run) else group:
            if isinstance(one, Run):
                source = str(one.directory or f"the run of {one.result.facts.started:%H:%M:%S}")
                read = Sources((run_summary.of_run(Path(source), one.result),))
            else:
                places.append(os.fspath(one))
                read = sources.read(places[-1:])
            found += [replace(known, name=name or known.name) for known in read.reported]
            troubles += read.troubles
            failures += read.failures
    return Sources(tuple(found), tuple(troubles), tuple(failures)), places


class AuditedRun(msgspec.Struct, frozen=True):
    """One run of an audit: its name, the file or place it was read from, and what was found."""

    name: str
    source: str
    verdict: Verdict


class Audit:
    """What cannot be in published figures: a verdict for each run that was read, in their order.

    `messages` are lines on what could not be read.
    """

    def __init__(self, audited: Audited) -> None:
        self._audited = audited
        self.runs = tuple(
            AuditedRun(run["name"], run["source"], Verdict.of(run)) for run in audited.json()["runs"]
        )
        self.messages = tuple(audited.messages)

    def text(self, *, explain: bool = False) -> str:
        """The audit as `loadgen audit` prints it; `explain` adds every doubt's evidence and remedy."""
        from loadgen.analysis.audit import render

        return render.text(self._audited.findings, explain=explain)

    def json(self) -> dict[str, Any]:
        """Everything as `loadgen audit --json` prints it."""
        return self._audited.json()


def audit(
    runs: Sequence[Run | Place],
    *,
    model: str | None = None,
    hardware: str | None = None,
    bandwidth: float | None = None,
) -> Audit:
    """Look for what cannot be in runs, result files of any client, and pages with pasted results.

    `model` is what every run is of, where their names do not say; `hardware` (as "4xh100") or `bandwidth` in
    GB/s is the machine. Raises LoadgenError where there are no figures.
    """
    from loadgen.analysis.audit.command import audited
    from loadgen.analysis.comparison.ceilings import Hardware

    return Audit(audited(_sources(runs)[0], Hardware(hardware, bandwidth), model))
