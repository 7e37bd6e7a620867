"""Limit record: the search for the highest load that meets objectives: `limit.json`, in words, as a value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from loadgen import __version__
from loadgen.base.errors import UsageError
from loadgen.base.parsing import MOST_SECONDS
from loadgen.base.passages import Passage, render_passages
from loadgen.base.tables import Column, Table
from loadgen.base.text import clean_line, format_count
from loadgen.figures import objectives
from loadgen.figures.objectives import Standing, list_written_names, name_numbers
from loadgen.plan.profile import Profile
from loadgen.report.run import Run
from loadgen.study.load_table import SIMULATION
from loadgen.study.series_record import SeriesRecord
from loadgen.study.sweep_record import LoadAxis

LIMIT = "limit.json"

# The evidence of the lowest failing load points to this part of the server (or the client).
Bottleneck = Literal["queue", "prefill", "decode", "kv-cache", "client", "unknown"]
# within: the interval is as narrow as asked; nothing-passes, everything-passes: the bounds of the search;
# client-limited: runs stayed disturbed by the client, or its machine, and the search went no higher;
# ran-out: the workload had too few requests, or sessions, for a run.
SearchEnd = Literal[
    "within", "budget", "most-runs", "nothing-passes", "everything-passes", "client-limited", "interrupted",
    "server-died", "ran-out",
]  # fmt: skip


class LimitEstimate(BaseModel, extra="forbid", frozen=True):
    """An estimate and where the truth lies at a confidence; None: on that side nothing is known."""

    value: float | None
    low: float | None
    high: float | None
    confidence: float = 0.95


class ObjectiveFigures(BaseModel, extra="forbid", frozen=True):
    """The figures of one objective in one run of the search, in its unit; None where there is none.

    In a file their names carry the unit, as value_ms, bound_ms, limit_ms and lower_ms, or value_tok_s.
    """

    objective: str
    unit: Literal["ms", "tok/s"] = "ms"
    samples: int
    over: int  # samples beyond the limit
    value: float | None
    bound: float | None  # on the slow side, at 99 % confidence
    limit: float
    standing: Standing = Standing.NOT_SHOWN
    fast_bound: float | None = None  # on the fast side, at 99 % confidence
    batches: tuple[tuple[int, int], ...] = ()  # samples, and those beyond the limit, of successive parts
    dispersion: float = 1.0  # see ObjectiveEvidence

    @model_validator(mode="before")
    @classmethod
    def _read_written_names(cls, data: Any) -> Any:
        """Return the data with fields' own names and the unit, where it has names with one, as value_ms."""
        if not isinstance(data, dict):
            return data
        for unit in ("ms", "tok/s"):
            names = {written: name for name, written in list_written_names(unit).items()}
            if names.keys() & data.keys():
                return {"unit": unit, **{names.get(key, key): value for key, value in data.items()}}
        return data

    @model_serializer(mode="wrap")
    def _write_names(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        row = write(self)
        return name_numbers({name: row[name] for name in row if name != "unit"}, self.unit)


class LimitRun(BaseModel, extra="forbid", frozen=True):
    """One whole run of the search."""

    number: int
    load: float
    directory: str  # below the search's; "": nothing was measured
    standing: Standing  # of all objectives together: whether the load is shown to meet them, or to fail
    reason: str  # why it is not shown to meet them; "" if it is
    verdict: str = ""
    doubts: tuple[str, ...] = ()  # that make it SUSPECT or INVALID, the gravest first
    saturated: bool = False  # ended early: the server fell further and further behind
    disturbed: bool = False  # by the client or its machine: it says nothing about the server
    cut: bool = False  # it ended before its time, though not as saturated, or every request failed
    ran_out: bool = False  # all was sent long before its time was over, too little for what it was to show
    objectives: tuple[ObjectiveFigures, ...] = ()
    duration_s: float = 0.0  # that was measured
    took_s: float = 0.0  # of the budget, warm-up and writing included
    p99_e2el_ms: float | None = None
    request_throughput_per_s: float | None = None
    output_throughput_per_s: float | None = None
    goodput_per_s: float | None = None
    power_w: float | None = None  # mean of the machine's or its GPUs' while it lasted; None: not measured

    @property
    def passed(self) -> bool:
        """Whether every objective is shown to be met at its load."""
        return self.standing is Standing.MEETS


class LimitRecord(SeriesRecord, frozen=True):
    """A search: what was asked, its runs in order, and the answer."""

    file_name, owner = LIMIT, "a search's"
    format: int = 2
    loadgen: str = __version__
    name: str
    command: tuple[str, ...]  # secrets hidden
    axis: LoadAxis
    of_sessions: bool = False  # a load counts sessions, else requests
    objectives: tuple[str, ...]
    within: float  # asked: 0.05 is 5 %
    budget_s: float | None
    most_runs: int = 12
    least_run_s: float | None = None  # asked; None: by the requests' own times
    fixed: str = ""  # a digest of all that is not varied: a search is resumed only with the same
    seed: int = 0
    start: float | None = None  # the first load; with the next three None until the server was probed
    lowest: float | None = None  # bounds of the search
    highest: float | None = None
    alone_s: float | None = None  # that a request takes, alone on the server
    attempts: int = 0  # how often the next run was begun, and cut off: another one has other prompts
    runs: tuple[LimitRun, ...] = ()
    ended: SearchEnd | None = None  # None: it goes on
    next_run_s: float | None = None  # that the next run takes at least, where the budget has less left
    limit: LimitEstimate | None = None  # of the highest load that meets the objectives
    highest_passing: float | None = None  # load that is shown to meet them
    lowest_failing: float | None = None  # load above it that is shown to fail
    bound_by: str = ""  # the objective that failed first
    bottleneck: Bottleneck | None = None
    evidence: str = ""  # of the bottleneck, in words with figures
    goodput_per_s: float | None = None  # at the highest passing load
    headroom: float | None = None  # of the client there, × its load
    headroom_at_least: bool = False  # its capacity is not known: at least as many
    knee: LimitEstimate | None = None
    power_w: LimitEstimate | None = None  # mean of the runs near the limit
    per_kw: LimitEstimate | None = None  # the limit ÷ that power in kW
    notes: tuple[str, ...] = ()
    simulated: bool = False  # the embedded engine answered with a preset's timing

    def list_serving(self) -> list[LimitRun]:
        """List the runs at the highest passing load, else at the highest up to the limit; [] without one."""
        known = self.limit is not None and self.limit.value is not None
        most = self.limit.value or 0.0 if self.limit is not None else 0.0
        passed = [run for run in self.runs if run.passed and run.load == self.highest_passing]
        near = [
            run for run in self.runs if known and run.directory and not run.disturbed and run.load <= most
        ]
        top = max((run.load for run in near), default=0.0)
        return passed or [run for run in near if run.load == top]


# A campaign's [limit] and Python have these.
LOAD_KEYS, BUDGET_KEY = ("start =", "lowest =", "highest ="), "budget_s ="


class LimitTable(BaseModel, extra="forbid", frozen=True, strict=True, allow_inf_nan=False):
    """A search as it is asked for; what is None follows from the server or the workload."""

    slo: Annotated[str, Field(min_length=1)]
    over: Literal["rate", "concurrency"] | None = None  # None: as the profile has it
    within: Annotated[float, Field(ge=0.001, le=1)] = 0.05  # share of the limit, 0.05 is 5 %
    budget_s: Annotated[float, Field(gt=0, le=MOST_SECONDS)] = 1800.0  # of one search
    max_runs: Annotated[int, Field(ge=2, le=1000)] = 12
    min_duration_s: Annotated[float, Field(gt=0, le=MOST_SECONDS)] | None = None  # of a run
    start: Annotated[float, Field(gt=0)] | None = None
    lowest: Annotated[float, Field(gt=0)] | None = None
    highest: Annotated[float, Field(gt=0)] | None = None

    def choose_axis(self, workload: Profile) -> LoadAxis:
        """Return `over` if given, else concurrency for a closed loop with a limit of it, else rate."""
        return self.over or ("concurrency" if workload.max_concurrency and not workload.open_loop else "rate")

    def make_record(self, axis: LoadAxis, slo: Sequence[str], **decided: Any) -> LimitRecord:
        """Make the record of a new search from its axis, objectives, settings and the fields `decided`."""
        kept = self.model_dump(include={"within", "budget_s", "start", "lowest", "highest"})
        kept |= {"most_runs": self.max_runs, "least_run_s": self.min_duration_s, "objectives": tuple(slo)}
        return LimitRecord(axis=axis, **kept, **decided)

    def check(self, workload: Profile, names: Sequence[str] = LOAD_KEYS) -> None:
        """Raise UsageError for a workload whose load cannot be varied, and for bounds that contradict.

        The objectives are checked against the workload. Concurrencies are whole numbers. `names` are those of
        start, lowest and highest where they are given.
        """
        if workload.ladder is not None:
            raise UsageError("a ladder has a load of one request at a time: `loadgen ladder` measures it")
        if workload.shaped or workload.timed:
            raise UsageError(
                "a search varies one rate or one concurrency: leave out the schedule, ramp, bursts or times "
                "of the workload"
            )
        if workload.users is not None and self.choose_axis(workload) == "rate":
            raise UsageError("--users has turns at --user-rate: --over concurrency varies the users")
        objectives.check_profile(workload.model_copy(update={"slo": self.slo}))
        start, lowest, highest = names
        if self.choose_axis(workload) == "concurrency":
            for name, load in zip(names, (self.start, self.lowest, self.highest), strict=True):
                if load is not None and load != round(load):
                    raise UsageError(f"{name} {load:g}: requests in flight are whole numbers")
        if self.lowest and self.highest and self.lowest >= self.highest:
            raise UsageError(f"{lowest} {self.lowest:g} is not below {highest} {self.highest:g}")
        if self.lowest and self.start and self.start < self.lowest:
            raise UsageError(f"{start} {self.start:g} lies below {lowest} {self.lowest:g}")
        if self.highest and self.start and self.start > self.highest:
            raise UsageError(f"{start} {self.start:g} lies above {highest} {self.highest:g}")

    @property
    def words(self) -> list[str]:
        """The flags of `loadgen limit` for the same search; loads and times without a value have none."""
        words = ["--slo", self.slo, "--within", f"{100 * self.within:g}%"]
        words += ["--budget", f"{self.budget_s:.12g}s", "--max-runs", f"{self.max_runs}"]
        least = None if self.min_duration_s is None else f"{self.min_duration_s:.12g}s"
        loads = [None if load is None else f"{load:g}" for load in (self.start, self.lowest, self.highest)]
        names = ("--over", "--min-duration", "--start", "--from", "--to")
        for name, word in zip(names, (self.over, least, *loads), strict=True):
            words += [] if word is None else [name, word]
        return words


_UNITS: Mapping[LoadAxis, str] = {"concurrency": "at a time", "rate": "requests/s"}
_LONG_S = 120.0  # from there on a time is in minutes
_ENDS: Mapping[SearchEnd, str] = {
    "within": "the interval is as narrow as asked",
    "budget": "the budget is spent",
    "most-runs": "no more runs were allowed",
    "nothing-passes": "no load is shown to meet the objectives",
    "everything-passes": "the highest load that was allowed meets the objectives",
    "client-limited": "runs stayed disturbed: the client or its machine, not the server, was the limit",
    "interrupted": "interrupted, with what is known so far",
    "server-died": "the server ended, with what is known so far",
    "ran-out": "a run had nothing left to send: --num-sessions N sends sessions again, requests need a "
    "longer file",
}
_BOTTLENECKS: Mapping[Bottleneck, str] = {
    "queue": "the evidence points to waiting in the server's queue",
    "prefill": "the evidence points to prefill",
    "decode": "the evidence points to decode",
    "kv-cache": "the evidence points to the KV cache",
    "client": "the evidence points to the client or its machine, not the server",
    "unknown": "no evidence of what the bottleneck is",
}


def describe_limit(record: LimitRecord) -> str:
    """Describe the limit with its interval, else the side on which it is; "limit: unknown" if neither is."""
    unit = name_unit(record.axis, record.of_sessions)
    if record.limit is not None and record.limit.value is not None:
        return f"limit: {format_load(record.limit.value)} {unit}{_format_interval(record.limit)}"
    if record.highest_passing is not None:
        return f"limit: at least {format_load(record.highest_passing)} {unit}"
    below = record.lowest_failing
    return "limit: unknown" if below is None else f"limit: below {format_load(below)} {unit}"


def name_unit(axis: LoadAxis, of_sessions: bool = False) -> str:
    """Name the unit of a search's loads."""
    return "sessions/s" if of_sessions and axis == "rate" else _UNITS[axis]


def format_load(value: float) -> str:
    """Format a load in three digits, or in all of those before the point."""
    if float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def make_run_table(record: LimitRecord) -> Table:
    """Make a row a run, by load: each objective's percentile and bound, the verdict, and what it shows."""
    load = name_unit(record.axis, record.of_sessions) if record.axis == "rate" else "concurrency"
    columns: list[tuple[Column, Callable[[LimitRun], str]]] = [
        (Column("number", "run"), lambda run: f"{run.number}"),
        (Column("load", load), lambda run: format_load(run.load)),
    ]
    units = {each.objective: each.unit for run in record.runs for each in run.objectives}
    shown = [objective for objective in record.objectives if objective in units]
    for goal in shown:
        unit, named = units[goal], name_percentile(goal)
        columns += [
            (Column(goal, f"{named} {unit}"), partial(_format_figure, goal, "value")),
            (
                Column(f"{goal}, bound", "≤ at 99 %" if unit == "ms" else "≥ at 99 %"),
                partial(_format_figure, goal, "bound"),
            ),
        ]
    if any(run.goodput_per_s is not None for run in record.runs):
        columns.append(
            (
                Column("goodput", "goodput req/s"),
                lambda run: "-" if run.goodput_per_s is None else f"{run.goodput_per_s:.4g}",
            )
        )
    columns += [
        (Column("verdict", "verdict"), lambda run: run.verdict or "-"),
        (
            Column("outcome", "objectives" if len(shown) > 1 else "objective"),
            lambda run: clean_line(describe_standing(run)),
        ),
    ]
    runs = sorted(record.runs, key=lambda run: (run.load, run.number))
    body = tuple(tuple(cell(run) for _, cell in columns) for run in runs)
    return Table(tuple(column for column, _ in columns), body)


def _format_figure(objective: str, name: str, run: LimitRun) -> str:
    value = next((getattr(each, name) for each in run.objectives if each.objective == objective), None)
    return "-" if value is None else format_value(value)


def make_search_passage(record: LimitRecord, name: str = "", key: str = "") -> Passage:
    """Make the passage of a search, `name` in its title: limit, statements on it, and a table of its runs."""
    limit, *statements = list_statements(record)
    table = make_run_table(record) if record.runs else None
    title = ", ".join(filter(None, (name, limit)))
    return Passage(title, key, lines=tuple(statements), table=table)


def name_percentile(objective: str) -> str:
    """Name the percentile that an objective is of, without its limit: ttft p99."""
    return objective.partition(" < ")[0].partition(" > ")[0]


def format_value(value: float) -> str:
    """Format milliseconds or a speed in four digits, or in all of those before the point."""
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"


def describe_standing(run: LimitRun) -> str:
    """Describe whether a run is shown to meet the objectives, and why it is not."""
    return f"{run.standing}: {run.reason}" if run.reason else str(run.standing)


def list_statements(record: LimitRecord) -> list[str]:
    """List the answer, a sentence an entry, its first the limit with its interval."""
    return [clean_line(part) for part in _list_sentences(record)]


def _list_sentences(record: LimitRecord) -> Iterator[str]:
    """Yield the limit, then what is known of it: loads, runs, end, doubts, cause, power, knee and notes."""
    yield describe_limit(record)
    yield f"for {', '.join(record.objectives)}"
    edges = {Standing.MEETS: record.highest_passing, Standing.FAILS: record.lowest_failing}
    known = [f"{word} at {format_load(value)}" for word, value in edges.items() if value is not None]
    loads = {run.load for run in record.runs}
    open_at = sorted(loads - {run.load for run in record.runs if run.standing is not Standing.NOT_SHOWN})
    if record.highest_passing is None and open_at:
        known.append(f"{Standing.NOT_SHOWN} at {', '.join(map(format_load, open_at))}")
    minutes = sum(run.duration_s for run in record.runs) / 60
    yield ", ".join([*known, f"{format_count(len(record.runs), 'run')} in {minutes:.1f} min"])
    if watched := sorted(run.duration_s for run in record.runs if run.directory and not run.saturated):
        times = dict.fromkeys(map(_format_time, (watched[0], watched[-1])))
        yield f"each load was watched for {' to '.join(times)}: what a server does later is not in it"
    if record.ended is not None:
        asked = f" (± {100 * record.within:g} %)" if record.ended == "within" else ""
        left_s = (record.budget_s or 0.0) - sum(run.took_s for run in record.runs)
        why = _ENDS[record.ended]
        if record.ended == "budget" and record.next_run_s is not None and left_s > 0:
            left = f"{_format_time(left_s)} of the budget are left"
            why = f"the next run needs about {_format_time(record.next_run_s)}, {left}"
        yield f"ended: {why}{asked}"
    yield from _describe_doubts(record)
    if record.bound_by:
        yield f"bound by {record.bound_by}"
    if record.bottleneck is not None:
        evidence = f": {record.evidence}" if record.evidence else ""
        yield f"{_BOTTLENECKS[record.bottleneck]}{evidence}"
    if record.goodput_per_s is not None and record.highest_passing is not None:
        yield f"goodput at {format_load(record.highest_passing)}: {record.goodput_per_s:.4g} requests/s"
    if record.per_kw is not None and record.per_kw.value is not None and record.power_w is not None:
        under_way = "sessions under way" if record.of_sessions else "requests under way"
        unit = name_unit(record.axis, record.of_sessions) if record.axis == "rate" else under_way
        each = f"{format_load(record.per_kw.value)} {unit}{_format_interval(record.per_kw)}"
        power = f"{format_load(record.power_w.value or 0.0)} W{_format_interval(record.power_w)}"
        yield f"per kW: {each}, of {power}"
    if record.headroom is not None:
        least = "at least " if record.headroom_at_least else ""
        yield f"client: could have measured {least}{record.headroom:.3g} × that load"
    if record.knee is not None and record.knee.value is not None:
        yield f"knee: the curve bends at {format_load(record.knee.value)}{_format_interval(record.knee)}"
    yield from (f"note: {note}" for note in record.notes)
    if record.simulated:
        yield SIMULATION


def _format_time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < _LONG_S else f"{seconds / 60:.1f} min"


def _describe_doubts(record: LimitRecord) -> Iterator[str]:
    """Yield one line: how many runs have doubts, and which runs have each; none without doubts."""
    doubted = [run for run in record.runs if run.doubts]
    if not doubted:
        return
    codes = dict.fromkeys(code for run in doubted for code in run.doubts)
    parts = []
    for code in codes:
        numbers = [str(run.number) for run in doubted if code in run.doubts]
        parts.append(f"{code} ({'run' if len(numbers) == 1 else 'runs'} {', '.join(numbers)})")
    levels = " or ".join(dict.fromkeys(run.verdict for run in doubted))
    yield f"{len(doubted)} of {format_count(len(record.runs), 'run')} {levels}: {', '.join(parts)}"


def _format_interval(estimate: LimitEstimate | None) -> str:
    """Write an interval in brackets with its confidence, " (95 %: 8 to 12)"; "" if both ends are unknown."""
    if estimate is None or (estimate.low is None and estimate.high is None):
        return ""
    confidence = f"{100 * estimate.confidence:g} %"
    if estimate.low is None or estimate.high is None:
        side, known = ("at least", estimate.low) if estimate.high is None else ("at most", estimate.high)
        return f" ({confidence}: {side} {format_load(known or 0.0)})"
    return f" ({confidence}: {format_load(estimate.low)} to {format_load(estimate.high)})"


class Limit:
    """The highest load that meets objectives, and the search for it. `limit` makes it.

    Loads are requests per second or requests in flight, as `record.axis` has it. `record` has every run's
    figures, what bound the limit and why the search ended; `runs` are those of which something was measured,
    in order. `directory` is where the search lies on disk, None for one that was not written.
    """

    def __init__(self, record: LimitRecord, runs: tuple[Run, ...], directory: Path | None = None) -> None:
        self.record, self.runs, self.directory = record, runs, directory

    def __repr__(self) -> str:
        return f"<loadgen.Limit {self.record.name}: {describe_limit(self.record)}>"

    @property
    def value(self) -> float | None:
        """The limit; None where only a side of it is known, or nothing."""
        return None if self.record.limit is None else self.record.limit.value

    @property
    def low(self) -> float | None:
        """The lower end of its 95 % interval; None: not known."""
        return None if self.record.limit is None else self.record.limit.low

    @property
    def high(self) -> float | None:
        """The upper end of its 95 % interval; None: not known."""
        return None if self.record.limit is None else self.record.limit.high

    @property
    def highest_passing(self) -> float | None:
        """The highest load at which a whole run is shown to meet every objective; None: no run is."""
        return self.record.highest_passing

    @property
    def lowest_failing(self) -> float | None:
        """The lowest load above that at which a run is shown to fail one; None: no run is."""
        return self.record.lowest_failing

    @property
    def per_kw(self) -> LimitEstimate | None:
        """The limit per kilowatt of the runs near it, with a 95 % interval; None: power is not known."""
        return self.record.per_kw

    def text(self) -> str:
        """Render the answer and the runs, as `loadgen limit` prints them."""
        return render_passages([make_search_passage(self.record)])

    def json(self) -> dict[str, Any]:
        """Return the content of limit.json."""
        return self.record.model_dump(mode="json")
