"""Answer: which checkpoint to take, and a row of what is known of each; as a passage, CSV and JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from loadgen.base import parsing
from loadgen.base.errors import UsageError
from loadgen.base.files import expand_path
from loadgen.base.intervals import NORMAL_QUANTILE
from loadgen.base.passages import Passage
from loadgen.base.tables import Number, Table, format_csv_table, list_interval_cells, make_table
from loadgen.base.text import GIB, count_decimals
from loadgen.base.untrusted import read_list, read_mapping
from loadgen.host.machine_state import Difference
from loadgen.report.result_file import make_strict
from loadgen.study import repeats
from loadgen.study.answer.answer_settings import AnswerRequest
from loadgen.study.answer.recommendation import (
    Candidate,
    Contest,
    Recommendation,
    Value,
    compute_price,
    list_candidates,
    make_limit_contest,
    make_load_contest,
    recommend,
)
from loadgen.study.compare.comparability import knows_state, list_run_differences
from loadgen.study.compare.comparison import read_figure
from loadgen.study.compare.limits import ComparedLimits
from loadgen.study.compare.model import ComparedLoad, ComparisonOptions, Decision, Split
from loadgen.study.importers import json_fields
from loadgen.study.load_table import SIMULATION
from loadgen.study.repeats import VAGUE, VAGUE_LEGEND
from loadgen.study.run_summary import Reported, group_by

Reader = Callable[[Candidate], Value | str]  # a candidate's value, else why there is none
TITLE = "What to take"
DOMINATED = "†"
_LEAST_OBJECTIVES = 2  # by one alone the slower row says nothing that its speed does not
_UNCHANGED = {"kl": 0.0, "agreement": 1.0}  # of the reference against itself
_ALIKE = 1e-9  # of the mean: an interval of rounding alone
_ERROR = "_stderr"  # of a metric, which comes before the filter: acc_stderr,none
_NO_METRIC = ("alias", "name", "sample_len", "samples")
_NOT_STARTED = "the server was not started here"
_NO_POWER = "no sensor of power or energy was read"
_NO_KV = "the size of the KV cache is in what an engine reports or logs, and was not found"


class AnswerColumn(msgspec.Struct, frozen=True):
    """One column, and how its values are written."""

    key: str
    title: str
    decimals: int = 2  # at most
    better: bool | None = None  # of an objective: whether higher is better; None: it is none
    scale: float = 1.0  # by which a value is multiplied where it is written


class AnswerRow(msgspec.Struct, frozen=True):
    """One checkpoint: its values by the column's key, and which rows are better in all."""

    name: str
    shown_name: str  # with a mark if it is simulated
    values: Mapping[str, Value | str]  # a text is why the value is not known
    dominated_by: tuple[str, ...] = ()


class CheckpointAnswer(msgspec.Struct, frozen=True):
    """The rows, the baseline first, their columns, and a recommendation for each contest."""

    baseline: str
    columns: tuple[AnswerColumn, ...]
    rows: tuple[AnswerRow, ...]
    recommendations: tuple[Recommendation, ...]
    asked: AnswerRequest
    unread: tuple[str, ...] = ()  # why files of scores that a campaign names were not read


def make_answer(
    tables: Sequence[ComparedLoad],
    searches: Sequence[ComparedLimits],
    ask: ComparisonOptions,
    asked: AnswerRequest,
    wanted: bool = False,
) -> CheckpointAnswer | None:
    """Make the answer of compared runs and limits; None if there are not two checkpoints to choose from.

    Of runs outside a campaign there is none either, unless it is `wanted`, anything is asked, or a quality is
    known. Raises UsageError where files of scores are wrong.
    """
    every = [make_limit_contest(table, ask) for table in searches]
    every += [make_load_contest(table, ask) for table in tables]
    contests = [contest for contest in every if len(contest.rows) > 1]
    measured = any(run.quality for contest in contests for row in contest.rows.values() for run in row.runs)
    if not contests or not (wanted or measured or ask.campaign.directory or asked != AnswerRequest()):
        return None
    scores, unread = _read_scores(asked.lm_eval, read_mapping(ask.campaign.answer.get("lm_eval")))
    candidates = list_candidates(contests, ask.campaign.reference, scores)
    filled = fill_columns(contests, candidates, asked.price_per_hour)
    columns = [
        column
        for column, values in filled.items()
        if any(isinstance(value, Value) and not value.nominal for value in values)
    ]
    rows = [
        AnswerRow(
            each.name,
            each.shown_name,
            {column.key: filled[column][at] for column in columns},
        )
        for at, each in enumerate(candidates)
    ]
    return CheckpointAnswer(
        candidates[0].name,
        tuple(columns),
        tuple(
            replace(row, dominated_by=tuple(_list_dominating(row, rows, columns, contests))) for row in rows
        ),
        tuple(recommend(contest, candidates, asked) for contest in contests),
        asked,
        tuple(unread),
    )


def _read_scores(
    files: Mapping[str, str], recorded: Mapping[str, Any]
) -> tuple[dict[str, Mapping[str, Value]], list[str]]:
    """Read scores by checkpoint, and list why those that only the campaign names cannot be read.

    Raises UsageError of another wrong file.
    """
    scores, unread = dict[str, Mapping[str, Value]](), list[str]()
    for name, file in files.items():
        try:
            scores[name] = read_scores(file)
        except UsageError as error:
            if recorded.get(name) != file:
                raise
            unread.append(f"no scores of {name}: {error}")
    return scores, unread


def read_scores(file: str) -> dict[str, Value]:
    """Read the first metric of each task, as "gsm8k exact_match", ± 1.96 × stderr where that is known.

    A task of a group that has a score itself is left out. Of a directory it is the results_*.json whose name
    sorts last. Raises UsageError of a file without scores.
    """
    path = expand_path(file)
    if path.is_dir():
        path = max(path.rglob("results_*.json"), key=lambda found: found.name, default=path)
    try:
        whole = json.loads(json_fields.read_bounded(path))
    except (ValueError, RecursionError):
        whole = None
    if not isinstance(whole, dict):
        raise UsageError(f"{path} is not a results_*.json of lm-evaluation-harness")
    results = read_mapping(whole.get("results"))
    scores = {task: score for task in results if (score := _find_score(read_mapping(results[task])))}
    groups = read_mapping(whole.get("group_subtasks"))
    grouped = {str(task) for group in groups if group in scores for task in read_list(groups[group])}
    if not scores:
        raise UsageError(f"{path}: no task has a score: give a results_*.json of lm-evaluation-harness")
    return {f"{task} {name}": value for task, (name, value) in scores.items() if task not in grouped}


def _find_score(metrics: Mapping[str, Any]) -> tuple[str, Value] | None:
    """Find the first metric that is a number, with its 95 % interval (NaN: unknown); None without any."""
    for key, number in metrics.items():
        name, comma, chosen = key.partition(",")
        value = parsing.read_figure(number)
        if value is None or name.endswith(_ERROR) or name in _NO_METRIC:
            continue
        error = parsing.read_figure(metrics.get(f"{name}{_ERROR}{comma}{chosen}"))
        reach = math.nan if error is None else NORMAL_QUANTILE * error
        return name, Value(value, value - reach, value + reach)
    return None


def _list_dominating(
    row: AnswerRow, rows: Sequence[AnswerRow], columns: Sequence[AnswerColumn], contests: Sequence[Contest]
) -> Iterator[str]:
    """Yield the names of rows that are better, beyond intervals, in all of two or more shared objectives."""
    for other in rows:
        if other is row:
            continue
        pairs = [
            (column.better, own, value)
            for column in columns
            if column.better is not None
            and isinstance(own := row.values[column.key], Value)
            and isinstance(value := other.values[column.key], Value)
        ]
        better = (  # beyond both intervals
            value.least > own.most if higher else value.most < own.least for higher, own, value in pairs
        )
        tested = (
            contest.compare(other.name, row.name).call is Decision.FASTER
            for contest in contests
            if {row.name, other.name} <= set(contest.speeds)
        )
        if len(pairs) >= _LEAST_OBJECTIVES and all(better) and all(tested):
            yield other.name


def fill_columns(
    contests: Sequence[Contest], candidates: Sequence[Candidate], price_per_hour: float | None
) -> dict[AnswerColumn, list[Value | str]]:
    """Fill every column in the order of the table: of each candidate the value, else why there is none.

    A speed a contest comes first, a score a task last. Figures `at_load` are not known of a candidate whose
    runs are at loads that do not meet the objectives of their search.
    """
    filled: dict[AnswerColumn, list[Value | str]] = {}
    baseline = candidates[0]

    def fill(
        key: str, title: str, read: Reader, decimals: int = 2, at_load: bool = False, **more: Any
    ) -> None:
        filled[AnswerColumn(key, title, decimals, **more)] = [
            (at_load and each.no_load) or read(each) for each in candidates
        ]

    def average(figure: Callable[[Reported], float | None], why: str) -> Reader:
        return lambda candidate: candidate.average(figure) or why

    for number, contest in enumerate(contests, 1):
        title = f"{contest.label}, {contest.title}" if len(contests) > 1 else contest.label
        fill(f"speed_{number}", title, contest.read_speed, better=contest.higher_is_faster)
    fill("throughput", "tok/s at limit", _read_throughput, at_load=True)
    fill("steps", "× by steps", partial(_read_split, "steps", baseline))
    fill("drafts", "× by drafts", partial(_read_split, "drafts", baseline))
    fill("kl", "KL", partial(_read_quality, "kl"), 6, better=False)
    fill("agreement", "top-1, %", partial(_read_quality, "agreement"), 1, scale=100)
    memory = average(lambda run: read_figure(run, "memory_bytes"), "no memory was measured")
    fill("memory", "GiB", memory, scale=1 / GIB)
    fill("kv_tokens", "KV tokens", average(_read_kv_tokens, _NO_KV), 0)
    fill("context", "longest context", _read_context, 0, at_load=True)
    fill("joules_per_request", "J/ request", average(_read_joules_per_request, _NO_POWER), at_load=True)
    energy = average(lambda run: run.joules_per_token, _NO_POWER)
    fill("joules_per_token", "J/ token", energy, 3, at_load=True, better=False)
    fill("ready_s", "s to ready", average(_read_ready_s, _NOT_STARTED), 1)
    fill("first_token_s", "s to token", average(_read_first_token_s, _NOT_STARTED), 1)
    output, total = (
        partial(compute_price, rate=rate, price_per_hour=price_per_hour)
        for rate in ("output_throughput", "total_token_throughput")
    )
    fill("output_price", "price/M output", output, 4, at_load=True)
    fill("total_price", "price/M total", total, 4, at_load=True)
    fill("state", "state", partial(_read_state, baseline))
    for task in dict.fromkeys(task for each in candidates for task in each.scores):
        fill(f"score {task}", task, partial(_read_score, task), 4)
    return filled


def _read_throughput(candidate: Candidate) -> Value | str:
    """Return the output throughput at the highest load that was searched for; else why there is none."""
    if not candidate.searched:
        return "its load was not searched for"
    return candidate.average(lambda run: run.figure("output_throughput")) or "no run has it"


def _read_split(part: str, baseline: Candidate, candidate: Candidate) -> Value | str:
    if candidate is baseline:
        return Value(1.0, nominal=True)
    if not isinstance(candidate.split, Split):
        return candidate.split or "no run has drafts, or it is not compared"
    return Value.of(getattr(candidate.split, part))


def _read_quality(part: str, candidate: Candidate) -> Value | str:
    """Return a figure of a candidate's quality, of the reference that of no difference; else why not."""
    if candidate.is_reference:
        mean = _UNCHANGED[part]
        return Value(mean, mean, mean, "reference", nominal=True)
    if candidate.quality is None:
        return "quality was not measured: [quality] in a campaign's file"
    found = getattr(candidate.quality, part)
    if found is None:
        return candidate.quality.why.get(part, "it could not be measured")
    return Value.of(found)


def _read_kv_tokens(run: Reported) -> float | None:
    as_run = None if run.facts is None else run.facts.as_run
    return float(as_run.kv_capacity_tokens) if as_run and as_run.kv_capacity_tokens else None


def _read_context(candidate: Candidate) -> Value | str:
    """Return KV cache ÷ requests in flight, in tokens, at most the model's context; else why not."""
    capacity = candidate.average(_read_kv_tokens)
    if capacity is None:
        return _NO_KV
    if not candidate.concurrency:
        return "it is not known how many requests were in flight"
    lengths = [facts.as_run.max_model_len for facts in candidate.facts if facts.as_run]
    lengths += [facts.server.max_model_len for facts in candidate.facts]
    most = next(filter(None, lengths), math.inf)
    return Value(float(min(most, round(capacity.mean) // max(1.0, candidate.concurrency))))


def _read_joules_per_request(run: Reported) -> float | None:
    sensed = None if run.facts is None else run.facts.sensed
    completed = run.figure("completed")
    return sensed.energy.joules / completed if sensed and sensed.energy and completed else None


def _read_ready_s(run: Reported) -> float | None:
    launched = None if run.facts is None else run.facts.launched
    return None if launched is None else launched.ready_s


def _read_first_token_s(run: Reported) -> float | None:
    launched = None if run.facts is None else run.facts.launched
    return None if launched is None else launched.first_token_s or None


def _read_state(baseline: Candidate, candidate: Candidate) -> Value | str:
    """Return in words how the machine's state differed from the baseline's; else why that is unknown.

    Runs of one repeat are compared, else the first ones; each quantity is listed once.
    """
    if candidate is baseline:
        return Value(words="baseline", nominal=True)
    ours, theirs = (
        {"" if run.cell is None else run.cell.repeat: run for run in each.runs if knows_state(run)}
        for each in (candidate, baseline)
    )
    if not (ours and theirs):
        return "the machine's state is recorded where the server runs on this machine"
    pairs = [(ours[key], theirs[key]) for key in ours if key in theirs]
    found: dict[str, Difference] = {}
    for own, other in pairs or [(next(iter(ours.values())), next(iter(theirs.values())))]:
        for difference in list_run_differences(own, other):
            found.setdefault(difference[0], difference)
    if not found:
        return Value(words="equal")
    (what, value, their), *more = found.values()
    others = f" and {len(more)} more" if more else ""
    return Value(words=f"{what} {value}, {baseline.name} {their}{others}")


def _read_score(task: str, candidate: Candidate) -> Value | str:
    return candidate.scores.get(task, "lm-evaluation-harness was not run on it, or its scores were not given")


def format_value(column: AnswerColumn, value: Value | str) -> str:
    """Write a value as 298.1 ±1.2, or its words if it has some; "–" for the text why it is unknown."""
    if isinstance(value, str):
        return "–"
    if value.words:
        return value.words
    mean, half = value.mean * column.scale, value.half * column.scale
    spreads = _ALIKE * abs(mean) < half < math.inf
    decimals = count_decimals(*((half, 2) if spreads else (mean, 4)), column.decimals)
    if not spreads:
        return f"{mean:.{decimals}f}"
    if repeats.is_vague(mean, half):
        return f"{mean:.{decimals}f} {repeats.VAGUE}"
    return f"{mean:.{decimals}f} ±{half:.{decimals}f}"


def make_passage(answer: CheckpointAnswer) -> Passage:
    """Make the passage of the answer: recommendations, the table and its notes."""
    # All recommendations that say the same are one, after their contests, or after nothing if that is all.
    same = group_by(answer.recommendations, lambda each: (each.words, *each.remarks))
    titles = [f"{', '.join(each.contest for each in of)}:" if len(same) > 1 else "" for of in same.values()]
    leads = tuple(
        ("", f"{title} {sentence}".strip())
        for title, sentences in zip(titles, same, strict=True)
        for sentence in sentences
    )
    table, notes = make_answer_table(answer), tuple(list_notes(answer))
    return Passage(TITLE, "answer", TITLE, leads, table=table, style="answer", remarks=notes)


def render_answer_csv(answer: CheckpointAnswer) -> str:
    """Write the answer as CSV, a line a checkpoint with every digit; an unknown value is empty."""
    rows = []
    for row in answer.rows:
        cells: dict[str, Any] = {"checkpoint": row.name}
        for column in answer.columns:
            value = row.values[column.key]
            words = value.words if isinstance(value, Value) else ""
            cells |= {column.key: words} if words else list_interval_cells(column.key, value)
        taken = [
            each.contest
            for each in answer.recommendations
            if row.name in each.names[:1] and each.choice == "take"
        ]
        cells |= {"dominated_by": "; ".join(row.dominated_by)}
        rows.append({**cells, "taken": "; ".join(taken)})
    return format_csv_table(list(rows[0]), rows)


def encode_answer(answer: CheckpointAnswer) -> dict[str, Any]:
    """Make the JSON object of the answer; an unknown value is null, with the reason in `why`."""
    asked = answer.asked
    made = {
        "baseline": answer.baseline,
        "constraints": {
            "fits_bytes": asked.fits_bytes,
            "slo": [str(objective) for objective in asked.slo],
            "max_kl": asked.max_kl,
        },
        "price_per_hour": asked.price_per_hour,
        "columns": [{"key": column.key, "title": column.title} for column in answer.columns],
        "rows": [
            {
                "name": row.name,
                "dominated_by": row.dominated_by,
                "values": {
                    key: value.words or {"mean": value.mean, "low": value.low, "high": value.high}
                    if isinstance(value, Value)
                    else None
                    for key, value in row.values.items()
                },
                "why": {key: value for key, value in row.values.items() if isinstance(value, str)},
            }
            for row in answer.rows
        ],
        "recommendations": [
            {
                **{key: value for key, value in asdict(each).items() if key != "remarks"},
                "choice": each.choice.value,
                "changes": each.remarks,
            }
            for each in answer.recommendations
        ],
        "notes": list(list_notes(answer)),
    }
    clean: dict[str, Any] = make_strict(made)
    return clean


def make_answer_table(answer: CheckpointAnswer) -> Table:
    """Make the table of the rows' values, each number with its whole value."""
    rows = []
    for row in answer.rows:
        cells = [f"{row.shown_name}{f' {DOMINATED}' if row.dominated_by else ''}"]
        for column in answer.columns:
            value, text = row.values[column.key], format_value(column, row.values[column.key])
            if isinstance(value, Value) and not value.words and math.isfinite(value.mean):
                text = Number(text, value.mean * column.scale, f"answer.{column.key}")
            cells.append(text)
        rows.append(cells)
    columns = [("checkpoint", "checkpoint"), *((each.key, each.title) for each in answer.columns)]
    return make_table(columns, rows, spanned=1)


def list_notes(answer: CheckpointAnswer) -> Iterator[str]:
    """Yield the notes below the table: marks, intervals, what is not known and why, and simulated runs."""
    for row in answer.rows:
        if row.dominated_by:
            others = ", ".join(row.dominated_by)
            yield f"{DOMINATED} {row.name} is worse than {others} in every known objective"
    cells = [format_value(column, row.values[column.key]) for row in answer.rows for column in answer.columns]
    if any("±" in cell for cell in cells):
        yield "± half of the 95 % confidence interval"
    if any(VAGUE in cell for cell in cells):
        yield VAGUE_LEGEND
    for column in answer.columns:
        lacking = [(row.name, why) for row in answer.rows if isinstance(why := row.values[column.key], str)]
        for why, of in group_by(lacking, lambda pair: pair[1]).items():
            yield f"– {column.title}, {', '.join(name for name, _ in of)}: {why}"
    yield from answer.unread
    if any(row.name != row.shown_name for row in answer.rows):
        yield SIMULATION
