"""Comparability: what must be equal for two runs to be compared, and what is only shown with the verdict.

A pair is refused where the load or the machine differs, or the figure is another quantity: the ratio would
say nothing about the checkpoint. Where the same quantity was measured on the same machine, a difference is
marked. What one side does not report is not judged. Figures of our own runs are computed again from their
arrivals, so that their definitions are always the same.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from loadgen.base import rule
from loadgen.base.errors import MeasureError
from loadgen.base.rule import Evidence, Find, Finding, Rule, join_evidence, marked, refused
from loadgen.base.text import format_count
from loadgen.facts.run_facts import ATTACHED
from loadgen.figures.figure_table import SELECTABLE, SPEED, find_figure
from loadgen.host.machine_state import Difference, list_setting_differences, list_state_differences
from loadgen.plan.request_sources import MADE
from loadgen.report.load_identity import has_range
from loadgen.server.server_counters import ROUTER
from loadgen.settings.setting import Makes
from loadgen.settings.table import list_profile_keys
from loadgen.study.compare import statistics
from loadgen.study.compare.model import ComparedRow
from loadgen.study.compare.speculation_split import COMMITTED_MS, has_drafts
from loadgen.study.importers.json_fields import format_rate
from loadgen.study.run_summary import SESSION_MS, Reported

MODE = "power mode"  # has a rule of its own, which refuses the pair


def explain_state_differences(run: Reported, baseline: Reported) -> Evidence | None:
    """Write by what the machine's state of a run differs from a baseline run's, with both values.

    None if it does not, where one is not recorded, and of two machines: another rule refuses those.
    """
    if run.machine != baseline.machine:
        return None
    apart = list_run_differences(run, baseline)
    return join_evidence(f"{what} {own}, baseline {other}" for what, own, other in apart if what != MODE)


def list_run_differences(run: Reported, baseline: Reported) -> list[Difference]:
    """List how the machine's state differs before two runs, then settings only after them; [] if unknown."""
    if run.facts is None or baseline.facts is None:
        return []
    before, other_before = run.facts.state_before, baseline.facts.state_before
    after, other_after = run.facts.state_after, baseline.facts.state_after
    apart = list_state_differences(before, other_before) if before and other_before else []
    late = list_setting_differences(after, other_after) if after and other_after else []
    known = {what for what, *_ in apart}
    return apart + [(f"{what} at the end", own, other) for what, own, other in late if what not in known]


def knows_state(run: Reported) -> bool:
    """Whether the machine's state before a run is recorded."""
    return run.facts is not None and run.facts.state_before is not None


def check_equal_states(tables: Iterable[Sequence[ComparedRow]]) -> None:
    """Raise MeasureError if runs of one table were not measured on a machine in one state.

    It names for each row the differences of one run, with both values; a state that is not recorded counts
    as one.
    """
    unequal: dict[str, None] = {}
    for rows in tables:
        measured = [row for row in rows if row.runs]
        for row in measured:
            for run in row.runs:
                first = measured[0]
                apart = list_run_differences(run, first.runs[0])
                named = ", ".join(
                    f"{what} {value} (first run of {first.name}: {other})" for what, value, other in apart
                )
                if sentence := named if knows_state(run) else "the state of its machine is not recorded":
                    unequal[f"{row.name}: {sentence}"] = None
                    break  # once a row
    if unequal:
        raise MeasureError(
            f"not measured in one state: {next(iter(unequal))}; bring the machine into one state and measure "
            "again, or compare without --require-equal-state",
            *(f"\n  {sentence}" for sentence in list(unequal)[1:]),
        )


LENGTH_TOLERANCE = 0.01
MUCH_SHORTER = 0.10
_MOST_LABELS = 8
_GOODPUT = "request_goodput"  # the one figure that a profile's objectives make
_E2EL = "e2el"
# Shorter answers alone make these better, of the same server; tokens per second and TPOT are a token's.
_OF_WHOLE_ANSWERS = {SESSION_MS, "request_throughput", "total_token_throughput", "input_throughput"}
_ALPHA = 0.05  # by which lengths vary between runs, and not by side
_CACHED = "prefix-cache"  # the doubt that a run's prompts were in the server's cache before it
_CACHED_APART = 0.05  # of the prompt tokens
# A TTFT this many times as short, at so long a prompt or a longer one, in so few steps, while TPOT is alike.
_WARM, _WARM_TOKENS, _STEPS, _TPOT_ALIKE = 4.0, 256, 2.0, 1.25
_TENTHS = 100.0  # values from here on are written to a tenth
Value = str | float | None  # None: not reported

# Keys of a profile that have a rule of their own, which knows what was made of them.
_RESOLVED = {"stream", "prompt_format", "num_warmups"}
_KEYS = {
    makes: [name for name in list_profile_keys(makes) if name not in _RESOLVED]
    for makes in (Makes.REQUEST, Makes.CLIENT)
}
# An engine reports these, and another checkpoint on the same server has them in common.
_AS_RUN = (
    *("attention_backend", "kv_cache_dtype", "cuda_graphs", "speculative", "prefix_caching"),
    *("chunked_prefill", "tensor_parallel"),
)
_OF_THE_CHECKPOINT = {"quantization", "seed", "environment"}
_SAME_LOAD = "measure both under the same load"
_SAME_SETUP = "measure both with the same setting, unless it is what you compare"


class Pair(msgspec.Struct, frozen=True):
    """A run and one of the baseline it is compared with."""

    run: Reported
    baseline: Reported


def find_differences(run: Reported, baseline: Reported) -> list[Finding]:
    """List the differences of a run from a baseline run by the rules of COMPARABILITY, refused ones first."""
    return rule.apply_rules(COMPARABILITY, Pair(run, baseline))


def explain_short_answers(run: Reported, otherwise: float | None) -> Evidence | None:
    """Write by how much a run's answers are over 1 % shorter than requested; None if not, or if unknown.

    `otherwise` is the requested length where the run does not report it. None also of a run of ours without
    one requested length for all its answers.
    """
    completed, generated = run.figure("completed"), run.figure("total_output_tokens")
    requested = run.load.asked_output_len or otherwise
    if not requested or not completed or generated is None:
        return None
    if run.facts is not None and (has_range(run.facts) or run.load.asked_output_len is None):
        return None  # each request has a length of its own; a doubt of the run judges that
    expected = completed * requested
    if generated >= expected * (1 - LENGTH_TOLERANCE):
        return None
    return f"output shorter than requested: {generated:.0f} of {expected:.0f} tokens"


def explain_other_quantity(key: str, runs: Sequence[Reported], baseline: Sequence[Reported]) -> str:
    """Write why a figure of two sides, each of a run or more, is not one quantity; "" if it is.

    Goodput is of other objectives; a percentile leaves out the requests that failed, which are beyond it; or
    the figure is of whole answers, whose lengths differ by over 1 %, and by more than they vary between runs.
    """
    if key == _GOODPUT:  # objectives that are not those of the last run, the baseline's
        known = (run.facts.ask().goodput_limits for run in (*runs, *baseline) if run.facts is not None)
        shown = [" ".join(f"{name}:{limit:g}" for name, limit in each.items()) or "none" for each in known]
        if other := next((each for each in shown if each != shown[-1]), ""):
            return f"goodput is of other objectives: {other}, baseline {shown[-1]}"
    for run in (*runs, *baseline):
        failed, sent = run.failures
        if sent and failed / sent > _find_left_out(key):
            return f"{failed:.0f} of {sent:.0f} requests failed, more than {key} leaves out"
    if key not in _OF_WHOLE_ANSWERS and find_figure(key) is not SELECTABLE[_E2EL]:
        return ""
    units = statistics.pair_units(runs, baseline, lambda run: run.output_len)
    lengths = replace(units, order=None).judge(None, LENGTH_TOLERANCE, _ALPHA)
    if not abs(lengths.ratio - 1) > LENGTH_TOLERANCE or lengths.p > _ALPHA:
        return ""
    own, other_len = (math.fsum(side) / len(side) for side in (units.row, units.baseline))
    return f"{own:.4g} tokens per response, baseline {other_len:.4g}: {key} is of whole outputs, TPOT is not"


def _find_left_out(key: str) -> float:
    """Find the share of requests, the slowest, that a percentile's key leaves out; 1 of any other figure."""
    word, figure = key.partition("_")[0], find_figure(key)
    try:
        rank = 50.0 if word == "median" else float(word.removeprefix("p"))
    except ValueError:
        return 1.0
    slow = rank if figure is not None and figure.kind == SPEED else 100 - rank
    return slow / 100 + 1e-9


def _differ_in(value: Callable[[Reported], Value], form: str, tolerance: float = 0.0) -> Find[Pair]:
    """Make the check that a value of both runs differs; it finds nothing where a side does not report it.

    Floats differ by more than `tolerance` times the baseline's; `form` is the text around the run's value.
    """

    def find(pair: Pair) -> Evidence | None:
        own, other = value(pair.run), value(pair.baseline)
        if own is None or other is None or "" in (own, other) or own == other:
            return None
        if isinstance(own, float) and isinstance(other, float) and abs(own - other) <= tolerance * abs(other):
            return None
        return f"{form.format(format_value(own))}, baseline {format_value(other)}"

    return find


def _differ_by_name(read: Callable[[Reported], Mapping[str, Any]]) -> Find[Pair]:
    return lambda pair: _describe_differences(read(pair.run), read(pair.baseline))


def list_one_servers(rows: Sequence[ComparedRow]) -> list[str]:
    """Write a sentence for rows of a campaign that one server answered, as one model, to equal requests."""
    same: dict[tuple[str, str, str, str], list[str]] = {}
    for row in rows:
        for run in row.runs[:1]:
            facts, cell = run.facts, run.cell
            if facts is None or cell is None or cell.start != ATTACHED:
                continue
            server, requests = facts.server, str(collect_profile_values(run, Makes.REQUEST))
            key = server.url, server.model, server.model_root, requests
            same.setdefault(key, []).append(row.name)
    return [
        f"{' and '.join(names)} are one: {model} at {url} answered all of them"
        for (url, model, *_), names in same.items()
        if len(names) > 1
    ]


def _describe_differences(
    own: Mapping[str, Any], other: Mapping[str, Any], absent: Any = None, most: int | None = None
) -> Evidence | None:
    """List in one line the values that differ, with those of the baseline (`other`); None if none does.

    A name that one side lacks has the value `absent`, or is left out if that is None. After the first `most`
    names the others are counted.
    """
    if absent is not None:
        every = dict.fromkeys((*own, *other), absent)
        own, other = {**every, **own}, {**every, **other}
    apart = [name for name in own if name in other and own[name] != other[name]]
    listed = rule.join_evidence(
        f"{name} {format_value(own[name])}, baseline {format_value(other[name])}" for name in apart[:most]
    )
    more = "" if most is None or len(apart) <= most else f", and {len(apart) - most} more"
    return None if listed is None else f"{listed}{more}"


def _compare_requests(pair: Pair) -> Evidence | None:
    """Write how the requests sent by two runs, or their durations, differ; None if they agree.

    None too where only one run reports a duration and one of the two is another client's.
    """
    times = [run.load.duration_s for run in (pair.run, pair.baseline)]
    if None in times and times != [None, None] and None in (pair.run.facts, pair.baseline.facts):
        return None
    return _differ_in(_describe_sent, "requests: {}")(pair)


def _describe_sent(run: Reported) -> Value:
    """Return how many requests a run was to send, else how many were answered; None if unknown.

    It is a text with the requests that ended of a run that ended early, and with the duration of a run by
    time, whose count depends on the server's speed.
    """
    if run.facts is not None and run.facts.partial:
        ended = [run.figure(key) or 0.0 for key in ("completed", "failed")]
        return f"{math.fsum(ended):.0f}, ended early"
    if (time_s := run.load.duration_s) is None:
        return run.sent
    most = None if run.facts is None else run.facts.profile.num_prompts
    return f"for {time_s:g} s" + ("" if most is None else f", {most} at most")


def _compare_prompts(pair: Pair) -> Evidence | None:
    """Write how mean prompt tokens differ by over 1 %, or else the requested ones; None if neither does.

    Requested lengths are compared of two runs of ours whose other keys of the load agree. Those counted are
    not, of other draws of one load on one server: the seed alone makes them differ.
    """
    if _is_another_draw(pair):
        return _compare_asked_inputs(pair)
    counted = _differ_in(lambda run: run.input_len, "{} tokens per prompt", LENGTH_TOLERANCE)(pair)
    if counted or _compare_settings(pair):
        return counted
    return None if None in (pair.run.facts, pair.baseline.facts) else _compare_asked_inputs(pair)


def _is_another_draw(pair: Pair) -> bool:
    """Whether one server got two plans that were made of the same settings and other seeds."""
    own, other = pair.run.facts, pair.baseline.facts
    if own is None or other is None or own.plan_digest == other.plan_digest or _compare_settings(pair):
        return False
    servers = [(each.server.engine, each.server.version, each.server.model) for each in (own, other)]
    return servers[0] == servers[1] and {own.data.kind, other.data.kind} <= {*MADE}


_compare_asked_inputs = _differ_in(lambda run: run.load.asked_input_len, "{} tokens requested per prompt")


def _compare_settings(pair: Pair) -> Evidence | None:
    """List the keys that make the load and differ; None if none does, or where a run's are not known.

    A key that only one run has is "as usual" in the other.
    """
    own, other = pair.run.load.unusual, pair.baseline.load.unusual
    return None if own is None or other is None else _describe_differences(own, other, "as usual")


def _differ_in_answers(tolerance: float) -> Find[Pair]:
    """Make the check that mean output tokens differ by more than `tolerance` of the baseline's.

    Of two draws of one load it finds nothing either if tokens ÷ planned tokens differ by no more than that.
    """
    differ = _differ_in(lambda run: run.output_len, "{} tokens per response", tolerance)

    def find(pair: Pair) -> Evidence | None:
        shares = []  # of the planned tokens
        for run in (pair.run, pair.baseline):
            planned = None if run.facts is None else run.facts.data.output
            shares.append((run.output_len or 0.0) / planned.mean if planned is not None else 0.0)
        own, other = shares
        if own and other and _is_another_draw(pair) and abs(own - other) <= tolerance * other:
            return None
        return differ(pair)

    return find


_much_shorter, _shorter = map(_differ_in_answers, (MUCH_SHORTER, LENGTH_TOLERANCE))


def find_cached_share(run: Reported) -> float | None:
    """Return the share of prompt tokens that a server had cached, by counters or usage; None if unknown."""
    window = None if run.facts is None else run.facts.own_window
    if window is not None and window.prefix_hits is not None and window.prefix_queries:
        return window.prefix_hits / window.prefix_queries
    return run.figure("cached_share")


def _compare_caches(pair: Pair) -> Evidence | None:
    """Write how two runs' cached shares differ, by over 5 points, if one has the doubt prefix-cache."""
    warm = [_CACHED in run.doubts for run in (pair.run, pair.baseline)]
    own, other = (find_cached_share(run) for run in (pair.run, pair.baseline))
    if not any(warm):
        return None
    if own is not None and other is not None:
        if abs(own - other) <= _CACHED_APART:
            return None
        return f"{100 * own:.3g} % of the prompt tokens cached, baseline {100 * other:.3g} %"
    if all(warm):
        return None
    return "prompts cached, the baseline's not" if warm[0] else "prompts not cached, the baseline's were"


def _question_warmth(pair: Pair) -> Evidence | None:
    """Write that one TTFT is a quarter of the other or less, and two steps or less, while TPOT is alike.

    None where a side reports cached tokens.
    """
    runs, length = (pair.run, pair.baseline), pair.run.input_len or 0.0
    ttft, tpot = ([run.figure(key) or 0.0 for run in runs] for key in ("mean_ttft_ms", "mean_tpot_ms"))
    if length < _WARM_TOKENS or not min(*ttft, *tpot) or max(tpot) > _TPOT_ALIKE * min(tpot):
        return None
    if max(ttft) < _WARM * min(ttft) or min(ttft) > _STEPS * min(tpot):
        return None
    if any(find_cached_share(run) is not None for run in runs):
        return None
    own, other = map(format_value, ttft)
    return f"TTFT of {own} ms, baseline {other} ms, at {length:.0f} tokens of prompt: as of a warm cache"


def _compare_formulas(pair: Pair) -> Evidence | None:
    """Write how the formulas of speed differ, where a side has no output throughput to compare."""
    throughputs = [run.figure("output_throughput") for run in (pair.run, pair.baseline)]
    return _differ_in(lambda run: run.speed_formula, "speed = {}")(pair) if None in throughputs else None


def collect_profile_values(run: Reported, makes: Makes) -> dict[str, Any]:
    """Collect by key the values of a run's profile that make the request, or the client, as `makes` has it.

    Keys with a rule of their own (stream, prompt_format, num_warmups) are not there; a field that was not
    sent has the value "left out". {} if the run is not ours.
    """
    if run.facts is None:
        return {}
    left_out = {field.name: "left out" for field in run.facts.adapted if not field.sent_as}
    return {key: left_out.get(key, getattr(run.facts.profile, key)) for key in _KEYS[makes]}


def collect_server_settings(run: Reported) -> dict[str, Any]:
    """Collect by name the settings that a server reports and are set, else those it was started with.

    Those of the checkpoint (quantization, seed, environment) are left out; {} of another client's run.
    """
    facts = run.facts
    as_run, launched = (None, None) if facts is None else (facts.as_run, facts.launched)
    given = {} if launched is None else launched.settings.model_dump(exclude=_OF_THE_CHECKPOINT)
    reported = {} if as_run is None else {key: getattr(as_run, key) for key in _AS_RUN}
    reported = {key: value for key, value in reported.items() if value}
    return reported | {key: value for key, value in given.items() if key not in reported}


def _compare_labels(pair: Pair) -> Evidence | None:
    """List the first 8 labels that differ between two results of one name and client; None if none does.

    None too where both were named as one place. A label that one side lacks is "".
    """
    own, other = pair.run, pair.baseline
    if own.name != other.name or own.told_by != other.told_by or own.place == other.place:
        return None
    return _describe_differences(own.unread, other.unread, "", _MOST_LABELS)


def format_value(value: Any) -> str:
    """Format a setting's value for a mark or a row's name; None and "" are "not given".

    A float has no decimals if it is whole, one from 100 on, else four digits; a tuple's parts are joined by
    spaces.
    """
    if isinstance(value, tuple):
        value = " ".join(map(str, value))
    if isinstance(value, float):
        digits = ".0f" if value == int(value) else ".1f" if abs(value) >= _TENTHS else ".4g"
        return f"{value:{digits}}"
    return "not given" if value in (None, "") else str(value)


def describe_traits(run: Reported) -> dict[str, str]:
    """Describe in words by subject who measured a run, where and how; "" where it is not reported.

    How it was measured is there only of a run of ours; its label, if it is of no campaign.
    """
    words = {
        "client": run.told_by,
        "machine": run.machine,
        "power mode": run.power_mode,
        "engine": run.engine,
        "simulated": run.simulated,
    }
    if run.facts is None:
        return words
    facts = run.facts
    if facts.cell is None:
        words["label"] = facts.label or ""
        if facts.launched is None and not facts.server.simulated:
            words["server"] = urlsplit(facts.server.url).netloc  # one that is started here has any free port
    # Servers behind a router are counted by role; the router is not counted.
    roles = sorted(Counter(each.role for each in facts.role_windows if each.role != ROUTER).items())
    by_role = ", ".join(f"{number} × {role}" for role, number in roles)
    return words | {
        "transport": "httpx" if facts.client.transport == "httpx" else "ring or wire",
        "stream": "streamed" if facts.profile.stream else "not streamed",
        "prompts": facts.prompt_format,
        "warm-up": "warmed up" if facts.warmups else "not warmed up",
        "repeated prompts": "prompts repeat" if facts.repeated_prompts else "no prompt twice",
        "number of servers": by_role or format_count(len(facts.targets) or 1, "server"),
    }


def _compare_draft_texts(pair: Pair) -> Evidence | None:
    """Write how the texts of two runs differ if one has drafts; None if not, or at one acceptance length.

    A text is the form of prompts, the kind of data, and a file or corpus by its bytes. None too where a run
    is not ours.
    """
    runs = (pair.run, pair.baseline)
    if not any(map(has_drafts, runs)) or all(run.figure(COMMITTED_MS) for run in runs):
        return None
    texts = []
    for run in runs:
        if run.facts is None:
            return None
        data = run.facts.data
        parts = data.kind, run.facts.prompt_format, data.file_digest[:8], data.text
        texts.append(" ".join(filter(None, parts)))
    if texts[0] == texts[1]:
        return None
    of = f"{texts[0]}, baseline {texts[1]}"
    return f"drafts of another text ({of}): --acceptance-length N compares step times"


def _differ_in_trait(subject: str, form: str = "{}") -> Find[Pair]:
    return _differ_in(lambda run: describe_traits(run).get(subject), form)


COMPARABILITY: tuple[Rule[Pair], ...] = (
    refused(
        "prompt length",
        "mean prompt tokens differ by more than 1 %, or the requested ones differ: prefill takes longer",
        _SAME_LOAD,
    )(_compare_prompts),
    refused("output asked for", "the requested output lengths differ", _SAME_LOAD)(
        _differ_in(lambda run: run.load.asked_output_len, "{} tokens requested per response")
    ),
    refused(
        "output length, much",
        "mean output tokens differ by more than 10 %: prefill has another share in the throughput",
        "use --ignore-eos on both sides",
    )(_much_shorter),
    marked(
        "output length",
        "mean output tokens differ by more than 1 % and at most 10 %: so do throughput and E2EL",
        "compare TPOT, or use --ignore-eos on both sides",
    )(lambda pair: None if _much_shorter(pair) else _shorter(pair)),
    refused(
        "requests",
        "numbers of requests differ (where both sent for a time: the times): the first and last wave take "
        "another share of the time; 100 requests at concurrency 8 are 12.5 waves that take 13, 4 % of the "
        "throughput",
        "use the same --num-prompts, or the same --duration",
    )(_compare_requests),
    refused("concurrency", "concurrency limits differ", _SAME_LOAD)(
        _differ_in(
            # A page without a limit may mean either.
            lambda run: run.load.max_concurrency or (None if run.facts is None else "no limit"),
            "concurrency {}",
        )
    ),
    refused("request rate", "request rates differ, or one is unlimited", _SAME_LOAD)(
        _differ_in(
            lambda run: "a trace's own" if run.load.timed else format_rate(run.load.request_rate_per_s),
            "{} requests/s",
        )
    ),
    refused(
        "spread of the load",
        "range ratio, shared prefix or burstiness differ: another load with the same means",
        _SAME_LOAD,
    )(_differ_in(lambda run: run.load.spread, "{}")),
    refused(
        "data",
        "another key that makes the load differs: the data (a file by its bytes, not its name), kind, "
        "window, limit or distribution of lengths, the meaning of the range ratio, turns, think time, users, "
        "planned cancels, a cap on prefill, a schedule, bursts, a ramp or classes",
        "measure both with the same data and flags",
    )(_compare_settings),
    refused(
        "formula",
        "speeds are by different formulas (output/time, (prompt+output)/time), and there is no output "
        "throughput to compare: two quantities with one unit",
        "give the result files, which have the output throughput",
    )(_compare_formulas),
    refused(
        "simulation",
        "one side was answered by the embedded engine: no model ran",
        "compare simulations only with one another",
    )(_differ_in(lambda run: "a simulation" if run.simulated else "a real server", "{}")),
    refused(
        "machine",
        "the machines' names differ: the ratio is of the machines as much as of the checkpoints",
        "measure both on one machine",
    )(_differ_in_trait("machine", "on {}")),
    refused("power mode", "power modes differ: in effect another machine", "measure both in one power mode")(
        _differ_in_trait("power mode", "power mode {}")
    ),
    marked(
        "state",
        "the machine was in another state: clock limits, power caps, firmware, heat, throttling, other "
        "processes of the GPU, swap, page cache in shared memory, memory bandwidth (--probe-memory)",
        "bring it into one state and measure again; --require-equal-state refuses such runs",
    )(lambda pair: explain_state_differences(pair.run, pair.baseline)),
    marked("engine", "engines or their versions differ", _SAME_SETUP)(_differ_in_trait("engine")),
    marked(
        "client",
        "the figures are from different clients: TTFT, TPOT and ITL are not defined alike (docs/metrics.md)",
        "measure both with one client",
    )(_differ_in_trait("client", "measured by {}")),
    marked(
        "transport",
        "one run used httpx, which adds the client's own delay, the other ring or wire, which do not",
        "use the same --transport",
    )(_differ_in_trait("transport")),
    marked(
        "stream",
        "one run was not streamed: its server sent no single tokens",
        "stream on both sides, or on neither",
    )(_differ_in_trait("stream")),
    marked(
        "prompts",
        "one run sent token ids, the other text: lengths and the server's tokenization differ",
        "use the same --prompt-format",
    )(_differ_in_trait("prompts", "prompts as {}")),
    refused(
        "cached prompts",
        "the prompts of one run were in the server's prefix cache before it (the doubt prefix-cache), and of "
        "the other's none were, or fewer by over 5 % of the tokens: it computed more",
        "measure the cached side again without --seed, or with --reset-cache",
    )(_compare_caches),
    marked(
        "warm cache",
        f"one TTFT is 1/{_WARM:g} of the other or less and at most {_STEPS:g} times TPOT, at {_WARM_TOKENS} "
        "tokens of prompt or more, while TPOT is alike and no side reports cached tokens: perhaps a prefix "
        "cache knew its prompts",
        "measure both with other prompts, or with the prefix cache off",
    )(_question_warmth),
    marked(
        "warm-up",
        "one run was not warmed up: its first requests pay for one-time work",
        "use the same --num-warmups",
    )(_differ_in_trait("warm-up")),
    refused(
        "text of drafts",
        "a side decodes speculatively and the prompts are of another form or source: how many draft tokens "
        "are accepted is the text's as much as the checkpoint's",
        "measure both with one text, or compare step times at one acceptance length: --acceptance-length N",
    )(_compare_draft_texts),
    marked(
        "repeated prompts",
        "prompts occur twice in one of the plans: a prefix cache serves them",
        "use longer random prompts, or the same plan",
    )(_differ_in_trait("repeated prompts")),
    marked(
        "request",
        "sampling, backend, ignore_eos or another key of the request differ: the server does other work",
        _SAME_SETUP,
    )(_differ_by_name(lambda run: collect_profile_values(run, Makes.REQUEST))),
    marked(
        "client settings",
        "a time-out, or what the steady state leaves out, differs: other requests count as failed",
        "use the same profile, unless that is what you compare",
    )(_differ_by_name(lambda run: collect_profile_values(run, Makes.CLIENT))),
    marked(
        "number of servers",
        "one run's requests were shared by another number of servers (--base-url)",
        "send both to as many, unless that is what you compare",
    )(_differ_in_trait("number of servers")),
    marked(
        "server",
        "server settings differ: prefix caching, CUDA graphs, speculative decoding, KV dtype, …",
        _SAME_SETUP,
    )(_differ_by_name(collect_server_settings)),
    marked(
        "labels",
        "two results of one name, from two places, have labels or settings that are not read and differ: "
        "`--metadata`, keys of the client",
        "these are what is compared; where they should be equal, measure again",
    )(_compare_labels),
)
