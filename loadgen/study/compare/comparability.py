"""Comparability: what must be equal for two runs to be compared, and what is only shown with the verdict.

A pair is refused where the load or the machine differs, or the figure is another quantity: the ratio would
say nothing about the checkpoint. Where the same quantity was measured on the same machine, a difference is
marked. What one side does not report is not judged. Figures of our own runs are computed again from their
arrivals, so that their definitions are always the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from loadgen.base import rule
from loadgen.base.rule import Evidence, Find, Finding, Rule, marked, refused
from loadgen.base.text import format_count
from loadgen.report.load_identity import has_range
from loadgen.settings.setting import Makes
from loadgen.settings.table import profile_keys
from loadgen.study.run_summary import Reported
from loadgen.verdict.run_facts import Facts

LENGTH_TOLERANCE = 0.01
MUCH_SHORTER = 0.10
_MOST_LABELS = 8
_GOODPUT = "request_goodput"  # the one figure that a profile's objectives make
_TENTHS = 100.0  # values from here on are written to a tenth
Value = str | float | None  # None: not reported

# Keys of a profile that have a rule of their own, which knows what was made of them.
_RESOLVED = {"stream", "prompt_format", "num_warmups"}
_REQUEST = [name for name in profile_keys(Makes.REQUEST) if name not in _RESOLVED]
_CLIENT = [name for name in profile_keys(Makes.CLIENT) if name not in _RESOLVED]
# What an engine reports of itself that another checkpoint on the same server has in common.
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
    """Find every difference of a run from one of the baseline, refused differences first."""
    return rule.findings(COMPARABILITY, Pair(run, baseline))


def explain_short_answers(run: Reported, otherwise: float | None) -> Evidence | None:
    """Say by how much answers were shorter than requested, over 1 %; None if not shorter, or unknown.

    `otherwise` is the requested length where the run does not report it.
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


def explain_other_quantity(key: str, runs: Sequence[Reported]) -> str:
    """Say why a figure of these runs of one load is not one quantity; "" where it is."""
    if key != _GOODPUT:
        return ""
    known = [run.facts.ask().goodput_slo_ms for run in runs if run.facts is not None]
    if len(apart := list(dict.fromkeys(map(_objectives, known)))) < 2:
        return ""
    return f"goodput is of other objectives: {apart[0]}, baseline {apart[-1]}"


def _objectives(slo_ms: Mapping[str, float]) -> str:
    return " ".join(f"{name}:{limit:g}" for name, limit in slo_ms.items()) or "none"


def _differ_in(value: Callable[[Reported], Value], form: str, tolerance: float = 0.0) -> Find[Pair]:
    """Two reported values that differ, by more than a share of the baseline's where they are numbers."""

    def find(pair: Pair) -> Evidence | None:
        own, other = value(pair.run), value(pair.baseline)
        if own is None or other is None or "" in (own, other) or own == other:
            return None
        if isinstance(own, float) and isinstance(other, float) and abs(own - other) <= tolerance * abs(other):
            return None
        return f"{form.format(format_value(own))}, baseline {format_value(other)}"

    return find


def _of_our_runs(value: Callable[[Facts], Value]) -> Callable[[Reported], Value]:
    """A value that only our own runs report."""
    return lambda run: None if run.facts is None else value(run.facts)


def _requests(pair: Pair) -> Evidence | None:
    """Numbers of requests, or times; a time and a number only of two runs of ours, which report both."""
    times = [run.load.duration_s for run in (pair.run, pair.baseline)]
    if None in times and times != [None, None] and None in (pair.run.facts, pair.baseline.facts):
        return None
    return _differ_in(_sent, "requests: {}")(pair)


def _sent(run: Reported) -> Value:
    """How many requests, or for how long: then a faster server gets more of them, up to a number."""
    if run.facts is not None and run.facts.partial:
        ended = [run.figure(key) or 0.0 for key in ("completed", "failed")]
        return f"{math.fsum(ended):.0f}, ended early"
    if (time_s := run.load.duration_s) is None:
        return run.sent
    most = None if run.facts is None else run.facts.profile.num_prompts
    return f"for {time_s:g} s" + ("" if most is None else f", {most} at most")


def _input(pair: Pair) -> Evidence | None:
    """Lengths of prompts as counted, else as requested of two runs of ours."""
    counted = _differ_in(lambda run: run.input_len, "{} tokens per prompt", LENGTH_TOLERANCE)(pair)
    if counted or _data(pair):
        return counted
    if None in (pair.run.facts, pair.baseline.facts):
        return None
    return _differ_in(lambda run: run.load.asked_input_len, "{} tokens requested per prompt")(pair)


def _rate(run: Reported) -> Value:
    rate = run.load.request_rate_per_s
    if run.load.timed:
        return "a trace's own"
    return "inf" if rate == math.inf else rate


def _concurrency(run: Reported) -> Value:
    unknown = "no limit" if run.facts is not None else None  # a page without a limit may mean either
    return unknown if run.load.max_concurrency is None else run.load.max_concurrency


def _data(pair: Pair) -> Evidence | None:
    """Name the keys that make the load and differ, of both runs: a key that one lacks has its default."""
    own, other = pair.run.load.unusual, pair.baseline.load.unusual
    if own is None or other is None:
        return None
    every = dict.fromkeys((*own, *other), "as usual")
    return _list_differences(every | own, every | other)


def _simulated(run: Reported) -> Value:
    """Refused, not marked: a preset's timing says nothing of a server, so neither may be called faster."""
    return "a simulation" if run.simulated else "a real server"


_much_shorter = _differ_in(lambda run: run.output_len, "{} tokens per answer", MUCH_SHORTER)
_shorter = _differ_in(lambda run: run.output_len, "{} tokens per answer", LENGTH_TOLERANCE)
_formulas = _differ_in(lambda run: run.speed_formula, "speed = {}")


def _speeds(pair: Pair) -> Evidence | None:
    """Speeds of two formulas, where there is no output throughput to compare instead."""
    throughputs = [run.figure("output_throughput") for run in (pair.run, pair.baseline)]
    return _formulas(pair) if None in throughputs else None


def _request(pair: Pair) -> Evidence | None:
    """Keys of the profile that make a request another one."""
    return _list_differences(request_keys(pair.run), request_keys(pair.baseline))


def request_keys(run: Reported) -> dict[str, Any]:
    """Collect the profile's keys that make a request what it is, as sent; {} of another client's run."""
    if run.facts is None:
        return {}
    left_out = {field.name: "left out" for field in run.facts.adapted if not field.sent_as}
    return {key: left_out.get(key, value) for key, value in _profile_keys(run.facts, _REQUEST).items()}


def _client(pair: Pair) -> Evidence | None:
    """Keys of the profile by which the client waits and trims."""
    if pair.run.facts is None or pair.baseline.facts is None:
        return None
    return _list_differences(
        _profile_keys(pair.run.facts, _CLIENT), _profile_keys(pair.baseline.facts, _CLIENT)
    )


def _profile_keys(facts: Facts, keys: Sequence[str]) -> dict[str, Any]:
    return {key: getattr(facts.profile, key) for key in keys}


def _server(pair: Pair) -> Evidence | None:
    """Settings that a server was given or reports, except those that are the checkpoint's own."""
    return _list_differences(dict(server_settings(pair.run)), dict(server_settings(pair.baseline)))


def server_settings(run: Reported) -> Iterator[tuple[str, Any]]:
    """Yield each setting that a server was given or reports, but those that are the checkpoint's own."""
    if run.facts is None:
        return
    facts = run.facts
    reported = {} if facts.as_run is None else {key: getattr(facts.as_run, key) for key in _AS_RUN}
    yield from ((key, value) for key, value in reported.items() if value)
    if facts.launched is not None:
        given = facts.launched.settings.model_dump(exclude=_OF_THE_CHECKPOINT)
        yield from ((key, value) for key, value in given.items() if not reported.get(key))


def _labels(pair: Pair) -> Evidence | None:
    """Compare the labels of two results of one name that were read from two places."""
    own, other = pair.run, pair.baseline
    if own.name != other.name or own.told_by != other.told_by or own.place == other.place:
        return None
    every = dict.fromkeys((*own.unread, *other.unread), "")
    apart = [key for key in every if own.unread.get(key, "") != other.unread.get(key, "")]
    more = f", and {len(apart) - _MOST_LABELS} more" if len(apart) > _MOST_LABELS else ""
    texts = (
        f"{key} {format_value(own.unread.get(key))}, baseline {format_value(other.unread.get(key))}"
        for key in apart[:_MOST_LABELS]
    )
    listed = rule.joined(texts)
    return None if listed is None else f"{listed}{more}"


def _list_differences(own: Mapping[str, Any], other: Mapping[str, Any]) -> Evidence | None:
    apart = [key for key in own if key in other and own[key] != other[key]]
    return rule.joined(
        f"{key} {format_value(own[key])}, baseline {format_value(other[key])}" for key in apart
    )


def format_value(value: Any) -> str:
    """Write a value as marks and names of rows have it."""
    if isinstance(value, tuple):
        value = " ".join(map(str, value))
    if isinstance(value, float):
        digits = ".0f" if value == int(value) else ".1f" if abs(value) >= _TENTHS else ".4g"
        return f"{value:{digits}}"
    return "not given" if value in (None, "") else str(value)


COMPARABILITY: tuple[Rule[Pair], ...] = (
    refused(
        "prompt length",
        "mean prompt tokens differ by more than 1 %, or the requested ones differ: prefill takes longer",
        _SAME_LOAD,
    )(_input),
    refused("output asked for", "the requested answer lengths differ", _SAME_LOAD)(
        _differ_in(lambda run: run.load.asked_output_len, "{} tokens requested per answer")
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
    )(_requests),
    refused("concurrency", "concurrency limits differ", _SAME_LOAD)(
        _differ_in(_concurrency, "concurrency {}")
    ),
    refused("request rate", "request rates differ, or one is unlimited", _SAME_LOAD)(
        _differ_in(_rate, "{} requests/s")
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
    )(_data),
    refused(
        "formula",
        "speeds are by different formulas (output/time, (prompt+output)/time), and there is no output "
        "throughput to compare: two quantities with one unit",
        "give the result files, which have the output throughput",
    )(_speeds),
    refused(
        "simulation",
        "one side was answered by the embedded engine: no model ran",
        "compare simulations only with one another",
    )(_differ_in(_simulated, "{}")),
    refused(
        "machine",
        "the machines' names differ: the ratio is of the machines as much as of the checkpoints",
        "measure both on one machine",
    )(_differ_in(lambda run: run.machine, "on {}")),
    refused("power mode", "power modes differ: in effect another machine", "measure both in one power mode")(
        _differ_in(lambda run: run.power_mode, "power mode {}")
    ),
    marked("engine", "engines or their versions differ", _SAME_SETUP)(
        _differ_in(lambda run: run.engine, "{}")
    ),
    marked(
        "client",
        "the figures are from different clients: TTFT, TPOT and ITL are not defined alike (docs/metrics.md)",
        "measure both with one client",
    )(_differ_in(lambda run: run.told_by, "measured by {}")),
    marked(
        "transport",
        "one run used httpx, which adds the client's own delay, the other ring or wire, which do not",
        "use the same --transport",
    )(
        _differ_in(
            _of_our_runs(lambda facts: "httpx" if facts.client.transport == "httpx" else "wire or ring"), "{}"
        )
    ),
    marked(
        "stream",
        "one run was not streamed: its server sent no single tokens",
        "stream on both sides, or on neither",
    )(_differ_in(_of_our_runs(lambda facts: "streamed" if facts.profile.stream else "not streamed"), "{}")),
    marked(
        "prompts",
        "one run sent token ids, the other text: lengths and the server's tokenization differ",
        "use the same --prompt-format",
    )(_differ_in(_of_our_runs(lambda facts: facts.prompt_format), "prompts as {}")),
    marked(
        "warm-up",
        "one run was not warmed up: its first requests pay for one-time work",
        "use the same --num-warmups",
    )(_differ_in(_of_our_runs(lambda facts: "warmed up" if facts.warmups else "not warmed up"), "{}")),
    marked(
        "repeated prompts",
        "prompts occur twice in one of the plans: a prefix cache serves them",
        "use longer random prompts, or the same plan",
    )(
        _differ_in(
            _of_our_runs(lambda facts: "prompts repeat" if facts.repeated_prompts else "no prompt twice"),
            "{}",
        )
    ),
    marked(
        "request",
        "sampling, backend, ignore_eos or another key of the request differ: the server does other work",
        _SAME_SETUP,
    )(_request),
    marked(
        "client settings",
        "a time-out, or what the steady state leaves out, differs: other requests count as failed",
        "use the same profile, unless that is what you compare",
    )(_client),
    marked(
        "number of servers",
        "one run's requests were shared by another number of servers (--base-url)",
        "send both to as many, unless that is what you compare",
    )(_differ_in(_of_our_runs(lambda facts: format_count(len(facts.targets) or 1, "server")), "{}")),
    marked(
        "server",
        "server settings differ: prefix caching, CUDA graphs, speculative decoding, KV dtype, …",
        _SAME_SETUP,
    )(_server),
    marked(
        "labels",
        "two results of one name, from two places, have labels or settings that are not read and differ: "
        "`--metadata`, keys of the client",
        "these are what is compared; where they should be equal, measure again",
    )(_labels),
)
