"""The public API of judging results: `loadgen.compare` and `loadgen.audit`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from loadgen.base.errors import UsageError
from loadgen.base.passages import render_passages
from loadgen.report.run import Place, Run, Verdict
from loadgen.study import compare_command, run_summary
from loadgen.study.answer.answer import CheckpointAnswer, make_answer
from loadgen.study.answer.answer_settings import AnswerRequest
from loadgen.study.audit import audit_command
from loadgen.study.audit.audit_command import Audited
from loadgen.study.compare import limits, model
from loadgen.study.compare.limits import ComparedLimits
from loadgen.study.compare.model import ComparisonOptions
from loadgen.study.consistency.ceilings import Hardware
from loadgen.study.importers import result_sources
from loadgen.study.importers.clients.loadgen_runs import StoredLimit
from loadgen.study.importers.result_sources import Sources
from loadgen.study.limit_record import Limit
from loadgen.study.run_summary import FailedCell, Reported

Compared = Run | Limit | Place
_ONE = (str, os.PathLike, Run, Limit)  # which are no list of them


class Comparison(msgspec.Struct, frozen=True):
    """Runs side by side: a table a load, each row with an effect and a verdict per figure.

    `messages` are lines on what could not be read, or was named twice. `limits` are the highest loads that
    searches found, a table for each kind of search.
    """

    tables: tuple[model.ComparedLoad, ...]
    messages: tuple[str, ...] = ()
    limits: tuple[ComparedLimits, ...] = ()
    options: ComparisonOptions = ComparisonOptions()

    def text(self) -> str:
        """Write the tables as `loadgen compare` prints them."""
        return self._write(markdown=False)

    def markdown(self) -> str:
        """Write the tables for a pull request."""
        return self._write(markdown=True)

    def _write(self, markdown: bool) -> str:
        found = self._campaign_answer
        passages = compare_command.list_passages(self.tables, self.limits, found)
        return render_passages(passages, markdown)

    def json(self) -> dict[str, Any]:
        """Return the tables and limits as an object of plain values, p-values too."""
        return compare_command.encode_comparison(self.tables, self.limits, self._campaign_answer)

    def answer(
        self,
        *,
        fits: str | None = None,
        slo: str | None = None,
        max_kl: float | None = None,
        price_per_hour: float | None = None,
        lm_eval: Mapping[str, str] | None = None,
    ) -> CheckpointAnswer | None:
        """Return what to take of them under these constraints; None if there are not two checkpoints.

        `fits` is a size as "16GiB", `slo` objectives as "tpot p95 < 50ms", `max_kl` nats a token, and
        `lm_eval` files of scores by checkpoint; what is None is as the campaign has it. Raises UsageError.
        """
        given = {
            "fits": fits,
            "slo": slo,
            "max_kl": max_kl,
            "price_per_hour": price_per_hour,
            "lm_eval": lm_eval,
        }
        known = {key: value for key, value in given.items() if value is not None}
        asked = AnswerRequest.read({**self.options.campaign.answer, **known})
        return make_answer(self.tables, self.limits, self.options, asked, wanted=True)

    @property
    def _campaign_answer(self) -> CheckpointAnswer | None:
        asked = AnswerRequest.read(self.options.campaign.answer)
        return make_answer(self.tables, self.limits, self.options, asked)


def compare(
    runs: Sequence[Compared] | Mapping[str, Compared | Sequence[Compared]],
    *,
    baseline: str = "",
    margin: float | None = None,
    alpha: float = 0.05,
    headline: str = "",
    allow_unlike: bool = False,
    hardware: str | None = None,
    bandwidth: float | None = None,
) -> Comparison:
    """Compare runs, limits, run directories, campaigns, searches and result files of other clients.

    A mapping names the rows, whose runs are repeats: {"before": [run, run], "after": [run, run]}; otherwise
    each thing in the list is a side of its own, named by its checkpoint, else by its place too.
    `margin` is what counts as equivalent, 0.02 for 2 %, and `alpha` the chance of a false verdict;
    docs/comparing.md describes how differences are judged. `baseline` is the campaign's if not given, else
    the first row that is not quantized, else the first. Raises LoadgenError where there is nothing to compare
    or an option is wrong.
    """
    machine = Hardware.find(hardware, bandwidth)
    read, places = _collect_sources(runs)
    campaign = model.read_campaign_settings(places)
    ask = ComparisonOptions(baseline, margin, alpha, headline, allow_unlike, machine, campaign)
    tables, searches = compare_command.compare_sources(read, ask), limits.compare_limits(read.limits, ask)
    return Comparison(tuple(tables), read.errors, tuple(searches), ask)


def _collect_sources(
    runs: Sequence[Compared] | Mapping[str, Compared | Sequence[Compared]],
) -> tuple[Sources, list[str]]:
    """Read everything that is named, each under the name of its row in a mapping; return it and the places.

    Raises UsageError of one thing alone, and of a place where nothing can be read. Runs of searches at a
    place are left out.
    """
    if isinstance(runs, _ONE) or not isinstance(runs, Iterable):
        raise UsageError("expected a list of runs and places, or a mapping from names to them: write [run]")
    groups = runs.items() if isinstance(runs, Mapping) else [("", runs)]
    reported: list[Reported] = []
    searched: list[StoredLimit] = []
    errors: list[str] = []
    failures: list[FailedCell] = []
    places: list[str] = []
    for name, group in groups:
        several: Any = group if isinstance(group, Iterable) and not isinstance(group, _ONE) else [group]
        for number, named in enumerate(several, 1):
            if not isinstance(named, _ONE):
                raise UsageError(
                    f"expected runs and places, got `{type(named).__name__}`: pass a run or a path"
                )
            if not isinstance(named, Run | Limit):
                places.append(os.fspath(named))
            read = _read_source(named, number)
            reported += _name_summaries(read.outside_searches.reported, name)
            searched += [
                replace(
                    limit,
                    record=limit.record.model_copy(update={"name": name or limit.record.name}),
                    place="" if name else limit.place,
                    runs=tuple(_name_summaries(limit.runs, name)),
                )
                for limit in read.limits
            ]
            errors += read.errors
            failures += read.failures
    return Sources(tuple(reported), tuple(errors), tuple(failures), limits=tuple(searched)), places


def _read_source(named: Compared, number: int) -> Sources:
    """Read a run, a limit and its runs, or a place; what has no directory is named by its `number`."""
    if isinstance(named, Run):
        return Sources((replace(_summarise(named), place=str(named.directory or f"run {number}")),))
    if isinstance(named, Limit):
        place = str(named.directory or f"limit {number}")
        stored = StoredLimit(named.directory, named.record, tuple(map(_summarise, named.runs)), place)
        return Sources((), limits=(stored,))
    return result_sources.read_sources([os.fspath(named)], shows_progress=False)


def _summarise(run: Run) -> Reported:
    source = str(run.directory or f"the run of {run.result.facts.started:%H:%M:%S}")
    return run_summary.summarise_run(Path(source), run.result)


def _name_summaries(summaries: Sequence[Reported], name: str) -> list[Reported]:
    return [replace(summary, name=name, place="") if name else summary for summary in summaries]


class RunAudit(msgspec.Struct, frozen=True):
    """One run of an audit: its name, the file or place it was read from, and what was found.

    `not_checked` has "roofline" where machine or model are unknown, "relations" where no figures depend on
    one another.
    """

    name: str
    source: str
    verdict: Verdict
    not_checked: tuple[str, ...] = ()


class Audit:
    """The verdict on each run that was read, in their order: which of its figures cannot be.

    `messages` are lines on what could not be read.
    """

    def __init__(self, audited: Audited) -> None:
        self._audited = audited
        self.runs = tuple(
            RunAudit(
                run.reported.name,
                run.reported.source,
                Verdict.from_findings(run.level, run.findings),
                run.unchecked,
            )
            for run in audited.findings
        )
        self.messages = tuple(audited.messages)

    def text(self, *, explain: bool = False) -> str:
        """Write the audit as `loadgen audit` prints it; `explain` adds every doubt's evidence and remedy."""
        return render_passages(audit_command.list_audit_passages(self._audited.findings, explain))

    def json(self) -> dict[str, Any]:
        """Return everything as `loadgen audit --json` prints it."""
        return self._audited.json()


def audit(
    runs: Sequence[Run | Place],
    *,
    model: str | None = None,
    hardware: str | None = None,
    bandwidth: float | None = None,
) -> Audit:
    """Find impossible figures in runs, result files of any client, and pages with pasted results.

    `model` is what every run is of, where their names do not show it; `hardware` (as "4xh100") or
    `bandwidth` in GB/s is the machine. Raises LoadgenError where there are no figures.
    """
    machine = Hardware.find(hardware, bandwidth)
    return Audit(audit_command.audit_sources(_collect_sources(runs)[0], machine, model))
