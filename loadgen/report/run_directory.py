"""Run directory: a run as its files have it, and Result, which computes everything else from them."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from loadgen.base.arrays import Bool, Int64
from loadgen.base.errors import UsageError
from loadgen.base.parsing import MOST_REQUESTS
from loadgen.base.structs import replace
from loadgen.facts.run_facts import Facts, OtherVersion
from loadgen.figures import objectives, steady_state
from loadgen.figures.metrics import Metrics, compute_metrics
from loadgen.figures.objectives import ObjectiveEvidence, judge_objectives
from loadgen.figures.per_request import MetricOptions
from loadgen.figures.session_rows import find_sessions
from loadgen.figures.steady_state import Steady, Trim, Unsteady
from loadgen.records import journal, text_tokens
from loadgen.records.journal import JOURNAL
from loadgen.records.record import Records
from loadgen.report.result_file import OURS, name_result_file
from loadgen.server import sample_file
from loadgen.server.sample_file import SAMPLES, KeptSamples
from loadgen.verdict import reconcile, verdict
from loadgen.verdict.arrival_checks import arrivals_not_tokens
from loadgen.verdict.evidence import MeasuredRun, RunEvidence, mark_counted
from loadgen.verdict.verdict import RunVerdict

_LONGEST_DETAIL = 200
LARGEST_RESULT = 1 << 30
T = TypeVar("T")
RESULT, ARRIVALS, REPORT = "result.json", "arrivals.npz", "report.txt"


@dataclass(frozen=True, eq=False)
class Result(MeasuredRun):
    """One run: its facts, records and samples; metrics, verdict and JSON are computed from them on demand."""

    samples: KeptSamples = field(default_factory=KeptSamples)

    @cached_property
    def counts(self) -> Bool:
        """Marks the records that figures are computed from, bool[requests]."""
        return mark_counted(self.facts, self.records, self.sessions)

    @cached_property
    def counted(self) -> Records:
        """The records that figures are computed from: those that `counts` marks."""
        return self.records.select_rows(self.counts)

    @cached_property
    def ask(self) -> MetricOptions:
        """The options of which figures to compute; no token times where what arrived is not tokens."""
        ask = self.facts.ask()
        believed = arrivals_not_tokens.code not in self.verdict.reasons
        return ask if believed else replace(ask, arrivals_are_tokens=False)

    @property
    def metrics(self) -> Metrics:
        """The figures of the counted records: those to be quoted."""
        return self._figures[0]

    @property
    def whole(self) -> Metrics:
        """The figures of all records, to compare with the plan and the server's counters."""
        return self._figures[1]

    @cached_property
    def _figures(self) -> tuple[Metrics, Metrics]:
        return self._arrived if self.ask.arrivals_are_tokens else self._compute_both(self.ask)

    @cached_property
    def _arrived(self) -> tuple[Metrics, Metrics]:
        """Figures, of counted and of all records, if each arrival were a token: the verdict judges that."""
        return self._compute_both(self.facts.ask())

    def measure_ranks(self, percentiles: Iterable[float]) -> Metrics:
        """Compute `metrics` with these percentiles instead of those that were asked for."""
        return self._compute_both(replace(self.ask, metric_percentiles=tuple(percentiles)))[0]

    def _compute_both(self, ask: MetricOptions) -> tuple[Metrics, Metrics]:
        """Compute the figures of the counted records, with rates of all work until their end, and of all."""
        ended = compute_metrics(self.counted, ask)
        if self.counted is self.records:
            return ended, ended
        whole = compute_metrics(self.records, ask)
        if not ended.duration_s:
            return ended, whole
        return steady_state.replace_rates(ended, self.records, int(self.counted.end_ns.max()), ask), whole

    @cached_property
    def verdict(self) -> RunVerdict:
        """The verdict: whether the figures can be believed, and the doubts found."""
        metrics, whole = self._arrived
        return verdict.judge(RunEvidence(self.facts, self.records, whole, metrics, self.parts))

    def choose_measured(self, latencies: Sequence[str]) -> tuple[str, ...]:
        """Keep the latencies measured: if arrivals are not tokens, those without token times, and E2EL."""
        if self.ask.arrivals_are_tokens:
            return tuple(latencies)
        known = {**self.metrics.selectable, **self.metrics.selectable_rates}
        return tuple(key for key in dict.fromkeys((*latencies, "e2el")) if key in known)

    @cached_property
    def steady(self) -> Steady | Unsteady:
        """The steady window of the run with its figures, or why there is none."""
        profile = self.facts.profile
        if profile.shaped:
            return Unsteady(f"the load changes ({', '.join(profile.shape_words)})")
        trim = Trim.parse(profile.warmup, profile.cooldown)
        return steady_state.find_steady_state(
            self.records,
            self.facts.held_concurrency,
            trim,
            self.ask,
            None if self.sessions is None else self.sessions.begins,
            self.facts.queues,
        )

    @cached_property
    def objectives(self) -> tuple[ObjectiveEvidence, ...]:
        """The evidence for each objective of --slo: met, missed or not shown."""
        return judge_objectives(self.counted, objectives.parse_objectives(self.facts.profile.slo), self.ask)

    @cached_property
    def reconciled(self) -> list[reconcile.ReconciledFigure]:
        """The client's figures next to those the server's counters give."""
        window = self.facts.window
        if not self.facts.whole_load:
            return []
        if window is None:
            return reconcile.reconcile_answers(self.whole, self.records)
        return reconcile.reconcile_figures(window, self.whole, self.records)

    def filename(self) -> str:
        """Return the file name that vLLM would give the result."""
        return name_result_file(self.facts)


class RequestColumn(msgspec.Struct, frozen=True):
    """A column of exported requests: its type in Parquet, in which runs it exists, a feature's values."""

    name: str
    kind: str = "string"
    about: str = ""  # for docs/results.md
    is_there: Callable[[Facts], object] = lambda facts: True
    # One value a request; None: `rows` has them.
    make: Callable[[Result], Sequence[str | int | None]] | None = None
    numbers: Callable[[Result], Int64] | None = None  # instead, int64[requests], negative where there is none


def is_run(directory: Path) -> bool:
    """Whether a directory holds a finished run, or the journal of one."""
    return any((directory / name).exists() for name in (RESULT, JOURNAL))


def find_runs(directory: Path) -> Iterator[Path]:
    """Yield the directories of runs, finished ones or journals, at and below a directory, by their names.

    Hidden directories, and those that links lead to, are left out.
    """
    for here, folders, _ in os.walk(directory):
        place = Path(here)
        if is_run(place):
            folders.clear()
            yield place
        folders[:] = sorted(name for name in folders if not name.startswith("."))


def load(directory: Path) -> Result:
    """Load the run in a directory; raises UsageError if it is not a run, damaged, or of another format.

    A run whose result was never written, since the client was killed, is read from its journal.
    """
    try:
        for path in (directory / RESULT, directory / ARRIVALS, *journal.list_files(directory / JOURNAL)):
            if path.exists() and not path.is_file():  # a pipe or a device: it could keep us waiting
                raise ValueError(f"{path.name} is not a regular file")
        if not (directory / RESULT).exists() and (directory / JOURNAL).exists():
            return _recover(directory)
        if (directory / RESULT).stat().st_size > LARGEST_RESULT:
            raise ValueError(f"{RESULT} has more than {LARGEST_RESULT >> 20} MiB")
        ours = json.loads((directory / RESULT).read_text("utf-8"))[OURS]
        facts, records = _read_facts(directory, ours), Records.load(directory / ARRIVALS)
        if sum(facts.session_turns) > MOST_REQUESTS:
            raise ValueError(f"its sessions have more than {MOST_REQUESTS:,} turns")
        if facts.session_turns:
            find_sessions(records, facts.session_turns)  # of which each request must be one
            facts.make_waits()  # of these sessions alone
        return Result(facts, records, sample_file.load(directory / SAMPLES))
    except OSError as error:
        raise UsageError(
            f"{directory} is not a run directory: {error.filename or directory}: {error.strerror}"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        detail = " ".join(str(error).split())[:_LONGEST_DETAIL]
        raise UsageError(f"{directory}: {RESULT} or {ARRIVALS} is damaged: {detail}") from None


def _read_facts(directory: Path, ours: Mapping[str, Any]) -> Facts:
    """Read a result's facts; raises UsageError for another version, ValueError for impossible ones."""
    try:
        facts = Facts.read_stored(ours)
    except OtherVersion as error:
        raise UsageError(f"{directory} {error}") from None
    objectives.check_reportable(facts.profile)
    if not facts.planned_rate_per_s > 0:
        raise ValueError(f"its request_rate is {facts.planned_rate_per_s}")
    return facts


def _recover(directory: Path) -> Result:
    """Make the result of a journal's whole parts; raises UsageError if it ends before the first request."""
    path = directory / JOURNAL
    contents = journal.read_journal(path)
    if not contents.facts:
        raise UsageError(f"{directory}: the run ended before its first request: there is nothing to report")
    facts = _read_facts(directory, json.loads(contents.facts))
    spill = directory if os.access(directory, os.W_OK) else Path(tempfile.gettempdir())
    parts = journal.open_parts(path)
    tokenizer = text_tokens.find_text_tokenizer((facts.text_tokenizer,))
    revise, uncounted = text_tokens.make_revision(parts, tokenizer)
    records = Records.join(journal.Parts(lambda: map(revise, parts)), spill)
    end = f"{len(records)} requests, at byte {contents.end} of {contents.size}"
    where = f"its journal, which ends after {end}"
    unknown = (f"tokens of responses without usage: {uncounted}",) if uncounted else ()
    recovered = replace(
        facts,
        requests=max(facts.requests, len(records)),
        under_way=False,
        unknown=(*facts.unknown, *unknown),
    )
    if facts.under_way:
        why = f"the client was killed during the run; read from {where}"
        return Result(replace(recovered, recovered=why), records)
    # Nothing that was measured is missing.
    why = f"the client ended before its report was written; read from {where}"
    return Result(replace(recovered, notes=(*facts.notes, why)), records)
