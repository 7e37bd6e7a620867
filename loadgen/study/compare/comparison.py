"""Comparison: runs as tables, one a load; the figures of each row, its ratios to the baseline, its marks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from loadgen.base.errors import UsageError
from loadgen.base.parsing import suggest_name
from loadgen.base.rule import Severity
from loadgen.base.text import format_count, list_first
from loadgen.features.fingerprint import answer_check
from loadgen.features.roofline import bound
from loadgen.features.roofline.models import find_suffix
from loadgen.figures.figure_table import LATENCIES, SELECTABLE, find_figure
from loadgen.figures.metrics import DECODING, PREFILL
from loadgen.report.load_identity import Load
from loadgen.study.compare import comparability, run_groups, speculation_split, statistics
from loadgen.study.compare.model import (
    ALONE,
    ComparedFigure,
    ComparedLoad,
    ComparisonOptions,
    Decision,
    Effect,
    Line,
)
from loadgen.study.compare.run_groups import Group
from loadgen.study.consistency.self_consistency import judge_figures
from loadgen.study.load_table import SIMULATION
from loadgen.study.quality.arm_qualities import format_spread
from loadgen.study.quality.quality_record import DIFFERENT, judge_quality
from loadgen.study.repeats import Mean
from loadgen.study.run_summary import (
    OURS,
    SESSION_MS,
    FailedCell,
    Reported,
    describe_simulation,
    group_by,
    strip_load,
)

_SPEED = "speed_tok_s"  # of speed tables and ladders
_CLOSED = (
    _SPEED, "output_throughput", DECODING, "mean_tpot_ms", "mean_e2el_ms", "mean_ttft_ms",
    PREFILL,
)  # fmt: skip
_RATED = ("mean_e2el_ms", "mean_ttft_ms", "mean_tpot_ms", "output_throughput", _SPEED)
_UNQUANTIZED = ("", "BF16", "FP16", "FP32")
FAR_APART = 2.0  # of runs that are taken for repeats: their mean says little of any of them
UNLIKE_BASELINE = "unlike the baseline"
INVALID, SUSPECT = "INVALID", "SUSPECT"
_MOST_NAMED = 3  # figures in a mark, and sources in a remark
Failed = list[tuple[str, FailedCell]]  # with the row that it belongs to


def _list_mean_figures(needs_tokens: bool) -> list[ComparedFigure]:
    return [
        ComparedFigure(figure.statistic("mean"), f"{figure.label} {figure.unit}", figure.higher_is_better)
        for figure in LATENCIES
        if figure.compared == figure.key and figure.needs_tokens == needs_tokens
    ]


FIGURES = (
    ComparedFigure("output_throughput", "tok/s", True),
    ComparedFigure("speed_tok_s", "speed tok/s", True),
    ComparedFigure(PREFILL, "prefill tok/s", True),
    ComparedFigure(DECODING, "decode tok/s", True),
    *_list_mean_figures(needs_tokens=True),
    *speculation_split.COLUMNS,
    ComparedFigure(SESSION_MS, "session ms", False, 0),
    *_list_mean_figures(needs_tokens=False),
    ComparedFigure("memory_bytes", "memory GiB", None),
    ComparedFigure("joules_per_token", "J/token", None, 3),
)
# Figures that are shown where no run has the mean, with the key of that mean.
IN_PLACE = {
    ComparedFigure(
        figure.statistic(word), f"{prefix}{figure.label} {figure.unit}", figure.higher_is_better
    ): SELECTABLE[figure.compared].statistic("mean")
    for figure in LATENCIES
    if figure.compared
    for word, prefix in (("mean", ""), ("median", "P50 "))
    if word == "median" or figure.compared != figure.key
}


def compare_runs(
    reported: Sequence[Reported],
    ask: ComparisonOptions,
    failures: Sequence[FailedCell] = (),
    lacking: Sequence[str] = (),
) -> list[ComparedLoad]:
    """Compare runs in a table a load, in order of appearance; Holm over rows and loads of each figure.

    Figures that contradict one another make another client's run INVALID; a run given twice is used once.
    Failed cells are failures of their rows, and a load without any run has a table of these. With
    `ask.allow_unlike` all runs are in one table if only one load has the baseline. Remarks on all tables are
    on the first; `lacking`, why runs have no roofline, on the first with such a row. Raises UsageError where
    the baseline or the headline asked for does not exist.
    """
    judged = speculation_split.add_step_figures([*map(judge_figures, reported)], ask.acceptance_length)
    runs, repeated = run_groups.drop_repeated(run_groups.sort_as_measured(judged))
    cells = [run.cell for run in runs if run.cell is not None] + [failure.cell for failure in failures]
    by_server = len({cell.server for cell in cells}) > 1
    names = run_groups.name_rows(runs, by_server=by_server)
    plain = {name: run_groups.find_plain_name(run, by_server) for name, run in zip(names, runs, strict=True)}
    failed: Failed = []
    for failure in failures:  # of the first row of its checkpoint (and server), else of one of that name
        own = failure.cell.arm if by_server else failure.cell.checkpoint
        failed.append((next((row for row, name in plain.items() if name == own), own), failure))
    stored = (run.cell.checkpoint if run.cell else run.name for run in runs)
    checkpoints = dict(zip(names, stored, strict=True))
    for name, failure in failed:
        checkpoints.setdefault(name, failure.cell.checkpoint)
    baseline, remarks = _choose_baseline(checkpoints, ask)
    _check_headline(ask.headline, runs)
    loads = run_groups.group_runs(runs, names)
    if ask.allow_unlike and sum(baseline in group.rows for group in loads) == 1:
        loads = run_groups.group_runs(runs, names, one_load=True)
    tables = []
    for group in loads:
        row = baseline
        if not (ask.baseline or ask.campaign.baseline or baseline in group.rows):
            row = find_default_row({name: checkpoints[name] for name in group.rows})
        load = strip_load(group.load.name)
        lost = [each for each in failed if len(loads) == 1 or strip_load(each[1].cell.profile) == load]
        tables.append(_compare_load(group, row, lost, ask))
    present = {strip_load(group.load.name) for group in loads}
    absent = [each for each in failed if len(loads) != 1 and strip_load(each[1].cell.profile) not in present]
    for name, lost in group_by(absent, lambda each: each[1].cell.profile).items():
        tables.append(_compare_load(Group(Load(name=name), {}), baseline, lost, ask))
    if repeated:
        remarks.append(f"given twice, used once: {list_first([run.source for run in repeated], _MOST_NAMED)}")
    made = _judge_loads(tables)
    lacks = [any(line.roofline is None for line in table.lines if line.runs) for table in made]
    bare = lacks.index(True) if True in lacks else 0
    return [
        replace(table, remarks=(*([] if at else remarks), *table.remarks, *(lacking if at == bare else ())))
        for at, table in enumerate(made)
    ]


def _choose_baseline(checkpoints: Mapping[str, str], ask: ComparisonOptions) -> tuple[str, list[str]]:
    """Choose the baseline's row: --baseline, else the campaign's, else the default; return it and remarks.

    Of a name that means several rows it is the first, which is remarked. Raises UsageError if --baseline is
    no row; a campaign's that is none is passed over.
    """
    for wanted in filter(None, (ask.baseline, ask.campaign.baseline)):
        if matches := match_rows(wanted, checkpoints):
            several = f"{wanted} is {len(matches)} rows, of which {matches[0]} is the baseline"
            return matches[0], [several] if len(matches) > 1 else []
        if wanted == ask.baseline:
            names, near = ", ".join(list(checkpoints)[:20]), suggest_name(wanted, checkpoints)
            raise UsageError(f"--baseline {wanted}: no such row{near}; there are {names}")
    return find_default_row(checkpoints), []


def match_rows(wanted: str, names: Collection[str]) -> list[str]:
    """List the rows' names that `wanted` means; [] if it means none.

    They are the name itself, else all that have " on " or " (" after it, else that name in another case.
    """
    begins = f"{wanted} on ", f"{wanted} ("
    exact = [wanted] if wanted in names else [name for name in names if name.startswith(begins)]
    return exact or [name for name in names if name.lower() == wanted.lower()]


def find_default_row(checkpoints: Mapping[str, str]) -> str:
    """Find the baseline where none is named: the first row that is not quantized, else the first, else "".

    `checkpoints` has each row's checkpoint, whose name has no storage or BF16, FP16 or FP32.
    """
    plain = (
        name for name, checkpoint in checkpoints.items() if find_suffix(checkpoint).upper() in _UNQUANTIZED
    )
    return next(plain, next(iter(checkpoints), ""))


def _check_headline(key: str, runs: Sequence[Reported]) -> None:
    """Raise UsageError for a headline that no run reports, or that does not rank speed; "" passes."""
    if not key:
        return
    if not any(read_figure(run, key) is not None for run in runs):
        names = (name for run in runs for name in run.figures if read_figure(run, name) is not None)
        keys = [name for name in dict.fromkeys(names) if find_column(name).higher_is_faster is not None]
        raise UsageError(
            f"--headline {key}: no run reports it{suggest_name(key, keys)}; there are {', '.join(keys)}"
        )
    if find_column(key).higher_is_faster is None:
        raise UsageError(f"--headline {key}: it does not rank speed: name a throughput or a latency")


def _compare_load(group: Group, baseline: str, failed: Failed, ask: ComparisonOptions) -> ComparedLoad:
    """Compare the rows of one load with its baseline, the first; each verdict is by its row alone.

    Rows of failed cells alone are there too; of a row without runs or failures, as a baseline, nothing is.
    """
    every = [run for runs in group.rows.values() for run in runs]
    figures = _select_figures(every)
    load = run_groups.join_loads([*group.rows.get(baseline, ()), *every]) if every else group.load
    headline = choose_headline(load, every, ask.headline)
    if every and headline not in (failure.key for failure in figures):
        figures.insert(0, find_column(headline))
    rows = {name: group.rows.get(name, ()) for name in (baseline, *group.rows, *(name for name, _ in failed))}
    reference = BaselineRuns.select(rows[baseline], _find_asked_output(every), ask)
    lines_made = []
    for name, runs in rows.items():
        reasons = Counter(failure.reason for row, failure in failed if row == name)
        if runs or reasons:
            line = compare_row(name, runs, reference, figures, name == baseline)
            messages = tuple(reason if n == 1 else f"{n} cells: {reason}" for reason, n in reasons.items())
            lines_made.append(replace(line, failures=messages))
    remarks, margin = tuple(_list_remarks(baseline, reference, lines_made)), ask.equivalence
    return ComparedLoad(
        load, baseline, tuple(figures), headline, tuple(lines_made), margin, ask.alpha, remarks,
        ask.kl_margin,
    )  # fmt: skip


def _select_figures(runs: Sequence[Reported]) -> list[ComparedFigure]:
    """Select the columns that any run has; in place of a missing mean, those of IN_PLACE.

    The speed is left out where runs have it by two formulas and all have the output throughput.
    """
    known = {key for run in runs for key in run.figures if read_figure(run, key) is not None}
    figures = [figure for figure in FIGURES if any(read_figure(run, figure.key) is not None for run in runs)]
    figures += [figure for figure, usual in IN_PLACE.items() if figure.key in known and usual not in known]
    formulas = {run.speed_formula for run in runs if run.speed_formula}
    if len(formulas) > 1 and all(read_figure(run, "output_throughput") is not None for run in runs):
        figures = [figure for figure in figures if figure.key != _SPEED]
    return figures


def choose_usual(load: Load) -> str:
    """Choose the key of the figure that decides under a load before any run: throughput, or mean E2EL."""
    return next(key for key in _list_usual(load) if key != _SPEED)


def _list_usual(load: Load) -> tuple[str, ...]:
    rate = load.request_rate_per_s
    return _CLOSED if rate is None or math.isinf(rate) else _RATED


def choose_headline(load: Load, runs: Sequence[Reported], asked: str = "") -> str:
    """Choose the key of the figure that decides: `asked` if a run of this load has it, else a usual column.

    Usual are throughputs first, at a finite request rate latencies; without any of them it is the first
    column that ranks speed, else the output throughput.
    """
    if asked and any(read_figure(run, asked) is not None for run in runs):
        return asked
    ranking = {figure.key: figure.higher_is_faster for figure in _select_figures(runs)}
    others = (key for key, higher_is_faster in ranking.items() if higher_is_faster is not None)
    return next((key for key in _list_usual(load) if key in ranking), next(others, "output_throughput"))


def _find_asked_output(runs: Sequence[Reported]) -> float | None:
    """Find the requested tokens of an answer: the only reported value, or None if several are reported.

    If none is, it is the longest mean answer where that is a whole number, else None.
    """
    asked = {run.load.asked_output_len for run in runs if run.load.asked_output_len is not None}
    if asked:
        return float(asked.pop()) if len(asked) == 1 else None
    longest = max((tokens for run in runs if (tokens := run.output_len) is not None), default=None)
    return longest if longest is not None and longest == int(longest) else None


def _list_remarks(baseline: str, reference: BaselineRuns, rows: Sequence[Line]) -> Iterator[str]:
    every = [run for line in rows for run in line.runs]
    if any(run.simulated for run in every):
        yield SIMULATION
    if len(rows) == 1:
        yield ALONE
    elif reference.missing:
        yield f"no verdicts: {reference.missing} ({baseline}); --baseline NAME chooses another"
    yield from speculation_split.list_remarks(every, reference.ask.acceptance_length)
    yield from statistics.list_unit_remarks(line.runs for line in rows)
    judged = [(line.name, line.runs) for line in rows if line.effects]
    yield from statistics.list_order_remarks(judged, baseline, reference.runs)
    tested = [line for line in rows if any(effect.units > 1 for effect in line.effects.values())]
    if any(not effect.paired for line in tested for effect in line.effects.values() if effect.units > 1):
        yield "not all runs are paired: with other prompts, or outside a campaign, they vary by prompts too"


def _judge_loads(tables: Sequence[ComparedLoad]) -> list[ComparedLoad]:
    """Judge each figure's effects together over all tables, and return the tables with answers marked."""
    effects = [line.effects for table in tables for line in table.lines]
    for key in dict.fromkeys(key for own in effects for key in own):
        tested = [own for own in effects if key in own]
        judged = statistics.judge_rows([own[key] for own in tested], tables[0].margin, tables[0].alpha)
        for own, effect in zip(tested, judged, strict=True):
            own[key] = effect
    return [
        replace(table, lines=tuple(mark_answers(line, table) for line in table.lines)) for table in tables
    ]


class BaselineRuns(msgspec.Struct, frozen=True):
    """The baseline's runs that others are compared with, and the one that all must be like."""

    runs: tuple[Reported, ...]
    like: Reported | None
    asked_output: float | None  # requested tokens of an answer, if reported
    ask: ComparisonOptions
    missing: str = ""  # why there is nothing to be held against

    @classmethod
    def select(
        cls, runs: Sequence[Reported], asked_output: float | None, ask: ComparisonOptions
    ) -> BaselineRuns:
        """Select the baseline's runs that are not INVALID and are comparable with the first of them.

        Without one, `like` is None and `missing` has the reason.
        """
        valid = [run for run in runs if run.level != INVALID]
        none = "the baseline's runs are INVALID" if runs else "the baseline has no run here"
        like, missing = (valid[0], "") if valid else (None, none)
        baseline = cls((), like, asked_output, ask, missing)
        return replace(baseline, runs=tuple(run for run in valid if baseline.is_comparable(run)))

    def is_comparable(self, run: Reported) -> bool:
        """Whether a run has no refused difference from `like`; always if unlike runs may be compared."""
        return self.ask.allow_unlike or self.like is None or not _find_marks(run, self.like, Severity.REFUSED)

    def judge_units(self, used: Sequence[Reported], column: ComparedFigure) -> Effect:
        """Judge the runs `used` against the baseline's in one figure, as if it were the only row.

        There is no verdict where it is another quantity on one side.
        """
        if why := comparability.explain_other_quantity(column.key, used, self.runs):
            return Effect(Decision.NONE, math.nan, why=why)
        units = statistics.pair_units(used, self.runs, lambda run: read_figure(run, column.key))
        return units.judge(column.higher_is_faster, self.ask.equivalence, self.ask.alpha)


def read_figure(run: Reported, key: str) -> float | None:
    """Return a run's figure of a key, or its memory_bytes or joules_per_token; None if it has none."""
    if key == "memory_bytes":
        return None if run.memory_bytes is None else float(run.memory_bytes)
    return run.joules_per_token if key == "joules_per_token" else run.figure(key)


def find_column(key: str) -> ComparedFigure:
    """Find the column of a figure's key; one without a column is made from the key.

    Higher is faster then by the table of figures, else if the key has "throughput"; lower is, if it ends in
    _ms; nothing is faster by others, and by a standard deviation.
    """
    known = find_figure(key)
    higher = known.higher_is_better if known else True if "throughput" in key else None
    if known is None and key.endswith("_ms"):
        higher = False
    other = ComparedFigure(key, key, None if key.startswith("std_") else higher)
    return next((column for column in (*FIGURES, *IN_PLACE) if column.key == key), other)


def compare_row(
    name: str,
    runs: Sequence[Reported],
    reference: BaselineRuns,
    figures: Sequence[ComparedFigure],
    is_baseline: bool,
) -> Line:
    """Make a row: means, share of the roofline, marks, and effects against the baseline, of the runs used.

    These are valid and comparable with the baseline; where none is, the row has no verdict and is of the
    valid runs, else of all. The baseline's own row has no effects.
    """
    valid = [run for run in runs if run.level != INVALID]
    used = [run for run in valid if reference.is_comparable(run)]
    shown = used or valid or list(runs)
    unlike = bool(valid and not used and not reference.missing)
    why = reference.missing or (UNLIKE_BASELINE if unlike else "")
    if not why and not valid:
        why = "its runs are INVALID" if runs else "it has no run here"
    steps = (
        bound.compare_decode(run.ceiling, run.figures, run.load) for run in shown if run.ceiling is not None
    )
    shares = [step.share for step in steps if step is not None]
    effects = {}
    for column in () if is_baseline else figures:
        if any(read_figure(run, column.key) is not None for run in shown):
            effects[column.key] = (
                Effect(Decision.NONE, math.nan, unlike=unlike, why=why)
                if why
                else reference.judge_units(used, column)
            )
    summaries = {}  # the mean over units, with its 95 % interval by Student's t
    for column in figures:
        if values := statistics.list_units(shown, partial(read_figure, key=column.key)):
            summaries[column.key] = Mean.average(values)
    return Line(
        name,
        tuple(runs),
        summaries,
        effects,
        math.fsum(shares) / len(shares) if shares else None,
        (*_question_repeats(shown, figures), *_list_marks(runs, valid, used, reference)),
        split=None
        if is_baseline or why
        else speculation_split.split_speed(used, reference.runs, reference.ask.alpha),
    )


def _find_marks(run: Reported, like: Reported, severity: Severity) -> list[str]:
    findings = comparability.find_differences(run, like)
    return [finding.evidence for finding in findings if finding.rule.severity is severity]


def _question_repeats(runs: Sequence[Reported], figures: Sequence[ComparedFigure]) -> Iterator[str]:
    """Yield one doubt whether runs are repeats, if a figure of theirs differs by a factor of two or more.

    It names the figure that differs most; of a campaign's runs, which are repeats, it asks for the cause.
    """
    apart: list[tuple[float, str]] = []
    for column in figures:
        values = [column.scale(value) for run in runs if (value := read_figure(run, column.key)) is not None]
        if factor := measure_distance(values):
            apart.append((factor, f"in {column.label} ({min(values):.4g} to {max(values):.4g})"))
    if not apart:
        return
    factor, where = max(apart, key=lambda each: each[0])
    if all(run.cell is not None for run in runs):  # repeats, since a campaign made them
        yield f"its {len(runs)} runs are {factor:g}× apart {where}: find what differed, or use no mean"
        return
    yield (
        f"are these {len(runs)} runs repeats? They are {factor:g}× apart {where}; if not, name each as a "
        "place of its own, or measure with --label"
    )


def measure_distance(values: Sequence[float]) -> float:
    """Compute the largest value ÷ the least, to one decimal; 0.0 where that is below 2, or the least is 0."""
    least, most = min(values, default=0.0), max(values, default=0.0)
    factor = round(most / least, 1) if least > 0 else 0.0
    return factor if factor >= FAR_APART else 0.0


def _list_marks(
    runs: Sequence[Reported], valid: Sequence[Reported], used: Sequence[Reported], reference: BaselineRuns
) -> Iterator[str]:
    """Yield a row's marks, the gravest first."""
    if bad := [run for run in runs if run.level == INVALID]:
        foreign = any(run.told_by != OURS for run in bad)
        why = f"{_name_doubts(bad)}{' (loadgen audit has the evidence)' if foreign else ''}"
        yield f"{_format_share(len(bad), len(runs))}{INVALID}, left out: {why}"
    if reference.like is not None:
        refused = UNLIKE_BASELINE if reference.ask.allow_unlike else "not compared"
        for severity, begin in ((Severity.REFUSED, f"{refused}: "), (Severity.MARKED, "")):
            apart = (_find_marks(run, reference.like, severity) for run in valid)
            yield from _count_sentences((f"{begin}{text}" for texts in apart for text in texts), len(valid))
    yield from _count_sentences(
        (comparability.explain_short_answers(run, reference.asked_output) for run in valid), len(valid)
    )
    for kind, judge in (
        ("impossible", bound.explain_impossible),
        ("a fallback kernel is likely", bound.explain_fallback),
    ):
        verdicts = (judge(run.ceiling, run.figures, run.load) for run in valid if run.ceiling is not None)
        if beyond := [*filter(None, verdicts)]:
            one = ", for one" if len(beyond) > 1 else ""
            yield f"{_format_share(len(beyond), len(valid))}{kind}{one}: {beyond[0]}"
    if suspect := [run for run in valid if run.level == SUSPECT]:
        yield f"{_format_share(len(suspect), len(runs))}{SUSPECT}: {_name_doubts(suspect)}"
    failed = [  # where no doubt of the run says so
        f"{run.failures[0]:.0f} of {run.failures[1]:.0f} requests failed"
        for run in valid
        if run.failures[0] and not run.doubts
    ]
    yield from _count_sentences(failed, len(valid))
    figures = ([f"{key} {value:.6g}" for key, value in run.impossible.items()] for run in valid)
    wrong = [
        f"no measurement gives {list_first(each, _MOST_NAMED)}: not compared" for each in figures if each
    ]
    yield from _count_sentences(wrong, len(valid))
    whole = {describe_simulation(run.simulated) for run in valid}  # a remark of the whole table
    remarks = (remark for run in valid for remark in run.remarks if remark not in whole)
    yield from _count_sentences(remarks, len(valid))
    if (
        used
        and reference.runs
        and (left := statistics.pair_units(used, reference.runs, lambda run: 1.0).left)
    ):
        yield f"{format_count(left, 'run')} without a partner, not paired"


def _count_sentences(sentences: Iterable[str | None], of: int) -> Iterator[str]:
    """Yield each different sentence once, after how many of `of` runs have it unless all do; no empty one."""
    for sentence, count in Counter(filter(None, sentences)).items():
        yield f"{_format_share(count, of)}{sentence}"


def _format_share(count: int, of: int) -> str:
    """Write "2 of 5 runs: "; "" if all have it."""
    return "" if count >= of else f"{count} of {of} runs: "


def _name_doubts(runs: Sequence[Reported]) -> str:
    return ", ".join(dict.fromkeys(doubt for run in runs for doubt in run.doubts)) or "no doubt is listed"


BROKEN = "fast because broken?"
FAR = 10.0  # margins of KL: a quantization that works is nearer


def mark_answers(row: Line, compared: ComparedLoad) -> Line:
    """Return a row with its answers' faults first among its marks, and where they part from the baseline's.

    The marks ask "fast because broken?" if the row is faster by the headline: by its verdict, or without one
    by more than the margin. Where its KL divergence is known, that decides, and not the greedy answers.
    """
    first, own = compared.lines[0], row.fingerprints
    known = first.fingerprints if first.name == compared.baseline != row.name else []
    like = known[0] if known else None
    problems: list[str] = []
    if row.quality is not None and (kl := row.quality.kl) is not None:
        margin = compared.kl_margin
        verdict = judge_quality(row.quality, margin)
        if verdict is not None and verdict.verdict == DIFFERENT and kl.low > FAR * margin:
            far = f"over {FAR:g} × {margin:g}"
            problems.append(f"KL {format_spread(kl)} nats a token from the reference, {far}")
    else:
        problems += dict.fromkeys(
            problem for answers in own for problem in answer_check.judge_answers(answers, like)
        )
    parted = answer_check.describe_difference(own[0], like, compared.baseline) if own and like else ""
    effect, is_faster = row.effects.get(compared.headline), False
    if effect is not None:
        is_faster = effect.call is Decision.FASTER
        if effect.call is Decision.NONE:
            times = effect.ratio if effect.higher_is_faster else 1 / effect.ratio
            is_faster = times > 1 + compared.margin
    if is_faster:
        problems = [f"{BROKEN} {problem}" for problem in problems]
    broken = problems[0] if is_faster and problems else ""
    return replace(row, marks=(*problems, *row.marks), answers=parted, broken=broken)
