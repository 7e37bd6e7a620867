"""Answer columns: what is known of each checkpoint, as a row of a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from functools import partial

import msgspec

from loadgen.base.text import GIB, count_decimals
from loadgen.host.machine_state import Difference
from loadgen.study import repeats
from loadgen.study.answer.contest import Candidate, Contest, Value
from loadgen.study.compare.comparability import knows_state, list_run_differences
from loadgen.study.compare.comparison import read_figure
from loadgen.study.compare.model import Effect, Split
from loadgen.study.run_summary import Reported

_UNCHANGED = {"kl": 0.0, "agreement": 1.0}  # of the reference against itself
_ALIKE = 1e-9  # of the mean: an interval of rounding alone
_HOUR_S, _MILLION = 3600.0, 1e6
_NOT_STARTED = "the server was not started here"
_NO_POWER = "no sensor of power or energy was read"
_NO_KV = "the size of the KV cache is in what an engine reports or logs, and was not found"
SAME_STATE = "equal"
Reader = Callable[[Candidate, Candidate], Value | str]


class AnswerColumn(msgspec.Struct, frozen=True):
    """One column; `read(candidate, baseline)` returns the candidate's value, else why there is none."""

    key: str
    title: str
    read: Reader
    decimals: int = 2  # at most
    better: bool | None = None  # of an objective: whether higher is better; None: it is none
    scale: float = 1.0  # by which a value is multiplied where it is written


def _make_mean_reader(figure: Callable[[Reported], float | None], why: str) -> Reader:
    return lambda candidate, baseline: candidate.average(figure) or why


def _at_load(read: Reader) -> Reader:
    """Make a reader that has no value of runs at loads that do not meet the objectives of their search."""
    return lambda candidate, baseline: candidate.no_load or read(candidate, baseline)


def _read_joules_per_request(run: Reported) -> float | None:
    sensed = None if run.facts is None else run.facts.sensed
    completed = run.figure("completed")
    return sensed.energy.joules / completed if sensed and sensed.energy and completed else None


def _read_kv_tokens(run: Reported) -> float | None:
    as_run = None if run.facts is None else run.facts.as_run
    return float(as_run.kv_capacity_tokens) if as_run and as_run.kv_capacity_tokens else None


def _read_ready_s(run: Reported) -> float | None:
    launched = None if run.facts is None else run.facts.launched
    return None if launched is None else launched.ready_s


def _read_first_token_s(run: Reported) -> float | None:
    launched = None if run.facts is None else run.facts.launched
    return None if launched is None else launched.first_token_s or None


def _read_context(candidate: Candidate, baseline: Candidate) -> Value | str:
    """Return KV cache ÷ requests in flight, in tokens, at most the model's context; else why not."""
    capacity = candidate.average(_read_kv_tokens)
    if capacity is None:
        return _NO_KV
    if not candidate.concurrency:
        return "it is not known how many requests were in flight"
    lengths = (facts.as_run.max_model_len for facts in candidate.facts if facts.as_run)
    most = next(filter(None, lengths), None) or next(
        (facts.server.max_model_len for facts in candidate.facts if facts.server.max_model_len), math.inf
    )
    return Value(float(min(most, round(capacity.mean) // max(1.0, candidate.concurrency))))


def compute_price(key: str, candidate: Candidate) -> Value | str:
    """Compute the price of a million tokens at the rate `key`: price ÷ tokens an hour · 10⁶; else why not."""
    rate, price = candidate.average(lambda run: run.figure(key)), candidate.price_per_hour
    if price is None or rate is None or not rate.mean:
        return "no price of the machine was given" if price is None else "no run has the throughput"
    cost, half = price / _HOUR_S / rate.mean * _MILLION, rate.half / rate.mean
    return Value(cost, cost * (1 - half), cost * (1 + half))


def _make_price_column(key: str, title: str, rate: str) -> AnswerColumn:
    return AnswerColumn(key, title, _at_load(lambda candidate, baseline: compute_price(rate, candidate)), 4)


def list_differences(candidate: Candidate, baseline: Candidate) -> list[Difference] | None:
    """List how the machine's state at the candidate's runs differed from that at the baseline's.

    Runs of one repeat are compared, else the first ones; each quantity is listed once. None if the state of
    either is not known.
    """
    theirs = {_identify(run): run for run in baseline.runs if knows_state(run)}
    ours = {_identify(run): run for run in candidate.runs if knows_state(run)}
    if not (theirs and ours):
        return None
    pairs = [(ours[key], theirs[key]) for key in ours if key in theirs]
    found: dict[str, Difference] = {}
    for own, other in pairs or [(next(iter(ours.values())), next(iter(theirs.values())))]:
        for difference in list_run_differences(own, other):
            found.setdefault(difference[0], difference)
    return list(found.values())


def _read_throughput(candidate: Candidate, baseline: Candidate) -> Value | str:
    """Return the output throughput at the highest load that was searched for; else why there is none."""
    if not candidate.searched:
        return "its load was not searched for"
    return candidate.average(lambda run: run.figure("output_throughput")) or "no run has it"


def _identify(run: Reported) -> Hashable:
    return "" if run.cell is None else run.cell.repeat


def _read_state(candidate: Candidate, baseline: Candidate) -> Value | str:
    """Return in words how the machine's state differed from the baseline's; else why that is unknown."""
    if candidate is baseline:
        return Value(words="baseline", nominal=True)
    differences = list_differences(candidate, baseline)
    if differences is None:
        return "the machine's state is recorded where the server runs on this machine"
    if not differences:
        return Value(words=SAME_STATE)
    (what, own, other), *more = differences
    others = f" and {len(more)} more" if more else ""
    return Value(words=f"{what} {own}, {baseline.name} {other}{others}")


def _read_split(part: str, candidate: Candidate, baseline: Candidate) -> Value | str:
    if candidate is baseline:
        return Value(1.0, nominal=True)
    if not isinstance(candidate.split, Split):
        return candidate.split or "no run has drafts, or it is not compared"
    return Value.of(getattr(candidate.split, part))


def _read_quality(part: str, candidate: Candidate, baseline: Candidate) -> Value | str:
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


# In the order of the table, between the speeds and the scores of lm-evaluation-harness.
COLUMNS = (
    AnswerColumn("throughput", "tok/s at limit", _at_load(_read_throughput)),
    AnswerColumn("steps", "× by steps", partial(_read_split, "steps")),
    AnswerColumn("drafts", "× by drafts", partial(_read_split, "drafts")),
    AnswerColumn("kl", "KL", partial(_read_quality, "kl"), 6, better=False),
    AnswerColumn("agreement", "same first, %", partial(_read_quality, "agreement"), 1, scale=100),
    AnswerColumn(
        "memory", "GiB",
        _make_mean_reader(lambda run: read_figure(run, "memory_bytes"), "no memory was measured"),
        scale=1 / GIB,
    ),
    AnswerColumn("kv_tokens", "KV tokens", _make_mean_reader(_read_kv_tokens, _NO_KV), 0),
    AnswerColumn("context", "longest context", _at_load(_read_context), 0),
    AnswerColumn(
        "joules_per_request", "J/ request",
        _at_load(_make_mean_reader(_read_joules_per_request, _NO_POWER)),
    ),
    AnswerColumn(
        "joules_per_token", "J/ token",
        _at_load(_make_mean_reader(lambda run: run.joules_per_token, _NO_POWER)), 3, better=False,
    ),
    AnswerColumn("ready_s", "s to ready", _make_mean_reader(_read_ready_s, _NOT_STARTED), 1),
    AnswerColumn("first_token_s", "s to token", _make_mean_reader(_read_first_token_s, _NOT_STARTED), 1),
    _make_price_column("output_price", "price/M output", "output_throughput"),
    _make_price_column("total_price", "price/M total", "total_token_throughput"),
    AnswerColumn("state", "state", _read_state),
)  # fmt: skip


def list_columns(contests: Sequence[Contest], candidates: Sequence[Candidate]) -> list[AnswerColumn]:
    """List columns in which any value is not nominal: a speed a contest, COLUMNS, and a score a task."""
    speeds = [
        _make_speed_column(contest, number, len(contests) > 1) for number, contest in enumerate(contests, 1)
    ]
    tasks = dict.fromkeys(task for each in candidates for task in each.scores)
    scores = [AnswerColumn(f"score {task}", task, partial(_read_score, task), 4) for task in tasks]
    baseline = candidates[0]
    return [
        column
        for column in (*speeds, *COLUMNS, *scores)
        if any(
            isinstance(value := column.read(each, baseline), Value) and not value.nominal
            for each in candidates
        )
    ]


def _make_speed_column(contest: Contest, number: int, several: bool) -> AnswerColumn:
    title = f"{contest.label}, {contest.title}" if several else contest.label

    def read(candidate: Candidate, baseline: Candidate) -> Value | str:
        speed = contest.speeds.get(candidate.name)
        return contest.explain_no_speed(candidate.name) if speed is None else Value.of(speed)

    return AnswerColumn(f"speed_{number}", title, read, better=contest.higher_is_faster)


def _read_score(task: str, candidate: Candidate, baseline: Candidate) -> Value | str:
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


def write_times(speed: Effect) -> str:
    """Write a speed-up as "1.9 ×", with one decimal if its interval is wide, else two; "" if unknown."""
    if not math.isfinite(speed.ratio):
        return ""
    half = (speed.high - speed.low) / 2
    decimals = 1 if speed.ratio >= 1.1 and half >= 0.05 else 2
    return f"{speed.ratio:.{decimals}f} ×"


def write_lead(contest: Contest, times: str, other: str = "") -> str:
    """Write "1.9 × as fast as BF16", of a search "1.9 × the users of BF16"; no name without `other`."""
    if contest.objectives:
        return f"{times} the {contest.label}" + (f" of {other}" if other else "")
    return f"{times} as fast" + (f" as {other}" if other else "")
