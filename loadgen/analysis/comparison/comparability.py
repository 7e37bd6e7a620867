"""Likeness: what must be equal for two runs to be compared at all, and what is only told beside the verdict.

A run is refused where the load was another, or the machine, or the figure is another quantity: its ratio
would say nothing of the checkpoint. What is the same quantity on the same machine is marked: the reader knows
what he compares. What is not told on both sides is not judged. Runs of ours are computed anew from their
arrivals, so that their definitions are always the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from loadgen.analysis.run_summary import Reported

LENGTH_TOLERANCE = 0.01
MUCH_SHORTER = 0.10
Told = str | float | None
Find = Callable[[Reported, Reported], str]

# Keys of a profile that are judged by their own item, or that change nothing of what the server does.
_OF_THEIR_OWN = {
    *("name", "description", "input_len", "output_len", "num_prompts", "max_concurrency", "request_rate"),
    *("range_ratio", "prefix_len", "burstiness", "stream", "percentile_metrics", "metric_percentiles"),
    *("goodput", "warmup", "cooldown", "table", "ladder", "server", "request_timeout", "stall_timeout"),
    *("duration", "num_warmups", "prompt_format"),
}
# What an engine says of itself that another checkpoint on the same server has in common.
_AS_RUN = (
    *("attention_backend", "kv_cache_dtype", "cuda_graphs", "speculative", "prefix_caching"),
    *("chunked_prefill", "tensor_parallel"),
)
_OF_THE_CHECKPOINT = {"quantization", "seed", "environment"}


class Severity(StrEnum):
    """What a difference does to the verdict."""

    REFUSED = "refused"  # no verdict; --allow-unlike makes it a mark
    MARKED = "marked"


class Item(msgspec.Struct, frozen=True):
    """One thing that should be the same in a row and in its baseline."""

    name: str
    severity: Severity
    condition: str
    why: str
    find: Find  # the difference in words, the row's first; "" where there is none


class Difference(msgspec.Struct, frozen=True):
    """An item in which a run is unlike the baseline."""

    item: Item
    said: str


def differences(run: Reported, baseline: Reported) -> list[Difference]:
    """Every item in which a run differs from one of the baseline, refused ones first."""
    found = [Difference(item, said) for item in ITEMS if (said := item.find(run, baseline))]
    return sorted(found, key=lambda one: one.item.severity is not Severity.REFUSED)


def shorter(run: Reported, otherwise: float | None) -> str:
    """By how much answers were shorter than asked, over 1 %; "" where they were not, or nobody tells.

    `otherwise` is what was asked of each answer where the run does not say it.
    """
    completed, generated = run.figure("completed"), run.figure("total_output_tokens")
    asked = run.load.asked_output_len or otherwise
    if not asked or not completed or generated is None:
        return ""
    if _profile(run, "range_ratio") not in (None, "0.0", "0"):
        return ""  # each was asked for a length of its own; a doubt of the run judges that
    wanted = completed * asked
    if generated >= wanted * (1 - LENGTH_TOLERANCE):
        return ""
    return f"output shorter than asked: {generated:.0f} of {wanted:.0f} tokens"


def table() -> str:
    """Every item as Markdown, as docs/comparing.md has it."""
    rows = ["| what | if it differs | when | why |", "| --- | --- | --- | --- |"]
    rows += [f"| {one.name} | {one.severity} | {one.condition} | {one.why} |" for one in ITEMS]
    return "\n".join(rows)


def _other(tell: Callable[[Reported], Told], form: str, tolerance: float = 0.0) -> Find:
    """Two told values that differ, by more than a share of the baseline's where they are numbers."""

    def find(run: Reported, baseline: Reported) -> str:
        own, other = tell(run), tell(baseline)
        if own is None or other is None or "" in (own, other) or own == other:
            return ""
        if isinstance(own, float) and isinstance(other, float) and abs(own - other) <= tolerance * abs(other):
            return ""
        return f"{form.format(_word(own))}, the baseline {_word(other)}"

    return find


def prompt_tokens(run: Reported) -> float | None:
    """Mean length of the prompts as counted; None where it is not told."""
    return _per_request(run, "total_input_tokens", run.load.input_len)


def output_tokens(run: Reported) -> float | None:
    """Mean length of the answers as counted; None where it is not told."""
    return _per_request(run, "total_output_tokens", run.load.output_len)


def _per_request(run: Reported, key: str, otherwise: float | None) -> float | None:
    total, completed = run.figure(key), run.figure("completed")
    if total is not None and completed:
        return total / completed
    return None if otherwise is None else float(otherwise)


def _requests(run: Reported) -> Told:
    if _profile(run, "duration") is not None:
        return None  # sent for a time: a faster server gets more of them
    asked = run.load.requests
    return run.figure("completed") if asked is None else float(asked)


def _somewhat_shorter(run: Reported, baseline: Reported) -> str:
    return "" if _much_shorter(run, baseline) else _any_shorter(run, baseline)


def _rate(run: Reported) -> Told:
    rate = run.load.request_rate_per_s
    return None if rate is None else ("inf" if math.isinf(rate) else float(rate))


def _concurrency(run: Reported) -> Told:
    most = run.load.max_concurrency
    if most is not None:
        return float(most)
    return "no limit" if run.run is not None else None  # a page that says nothing may mean either


def _asked_output(run: Reported) -> Told:
    asked = run.load.asked_output_len
    return None if asked is None else float(asked)


def _profile(run: Reported, key: str) -> Any:
    return None if run.run is None else getattr(run.run.facts.profile, key)


def _shape(run: Reported) -> Told:
    """How lengths and arrivals vary, and what prompts share; not told by others' files."""
    if run.run is None:
        return None
    profile = run.run.facts.profile
    return f"range {profile.range_ratio}, prefix {profile.prefix_len}, burstiness {profile.burstiness:g}"


def formula(run: Reported) -> str | None:
    """A speed table's formula, which its reader remarks on; None where none is told."""
    said = " ".join(run.remarks)
    return next((word for word in ("(prompt+output)/time", "output/time") if word in said), None)


def _formulas(run: Reported, baseline: Reported) -> str:
    """Speeds of two formulas, where there is no output throughput to compare instead."""
    key = "output_throughput"
    return "" if None not in (run.figure(key), baseline.figure(key)) else _other_formula(run, baseline)


def _simulated(run: Reported) -> Told:
    if run.run is None:
        return "a real server" if run.engine else None
    return "a simulation" if run.run.facts.server.simulated else "a real server"


def _transport(run: Reported) -> Told:
    return None if run.run is None else run.run.facts.client.transport


def _streamed(run: Reported) -> Told:
    if run.run is None:
        return None
    return "streamed" if run.run.facts.profile.stream else "not streamed"


def _prompts(run: Reported) -> Told:
    return None if run.run is None else run.run.facts.prompt_format


def _warm(run: Reported) -> Told:
    return None if run.run is None else ("warmed up" if run.run.facts.warmups else "not warmed up")


def _cache(run: Reported) -> Told:
    """Whether prompts were there before: repeated ones in the plan."""
    if run.run is None:
        return None
    return "prompts repeat" if run.run.facts.repeated_prompts else "no prompt twice"


def _request(run: Reported, baseline: Reported) -> str:
    """Keys of the profile that make a request another one."""
    if run.run is None or baseline.run is None:
        return ""
    own, other = (
        one.run.facts.profile.model_dump(exclude=_OF_THEIR_OWN) for one in (run, baseline) if one.run
    )
    return _listed(own, other)


def _server(run: Reported, baseline: Reported) -> str:
    """Settings that a server was given or says it has, but those that are the checkpoint's own."""
    return _listed(dict(_settings(run)), dict(_settings(baseline)))


def _settings(run: Reported) -> Iterator[tuple[str, Any]]:
    if run.run is None:
        return
    facts = run.run.facts
    said = {} if facts.as_run is None else {key: getattr(facts.as_run, key) for key in _AS_RUN}
    yield from ((key, value) for key, value in said.items() if value)
    if facts.launched is not None:
        given = facts.launched.settings.model_dump(exclude=_OF_THE_CHECKPOINT)
        yield from ((key, value) for key, value in given.items() if key not in said or not said[key])


def _listed(own: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    apart = [key for key in own if key in other and own[key] != other[key]]
    return "; ".join(f"{key} {_word(own[key])}, the baseline {_word(other[key])}" for key in apart)


def _word(value: Any) -> str:
    if isinstance(value, tuple):
        value = " ".join(map(str, value))
    if isinstance(value, float):
        return f"{value:.0f}" if value == int(value) else f"{value:.1f}"
    return "not given" if value in (None, "") else str(value)


_any_shorter = _other(output_tokens, "{} tokens an answer", LENGTH_TOLERANCE)
_much_shorter = _other(output_tokens, "{} tokens an answer", MUCH_SHORTER)
_other_formula = _other(formula, "speed = {}")
_REFUSED, _MARKED = Severity.REFUSED, Severity.MARKED
ITEMS: tuple[Item, ...] = (
    Item(
        "prompt length",
        _REFUSED,
        "mean tokens of a prompt differ by more than 1 %",
        "another load: prefill takes as long as its prompt",
        _other(prompt_tokens, "{} tokens a prompt", LENGTH_TOLERANCE),
    ),
    Item(
        "output asked for",
        _REFUSED,
        "tokens asked of each answer differ",
        "another load",
        _other(_asked_output, "{} tokens asked of an answer"),
    ),
    Item(
        "output length, much",
        _REFUSED,
        "mean tokens of an answer differ by more than 10 %",
        "prefill's share in the throughput is another",
        _much_shorter,
    ),
    Item(
        "output length",
        _MARKED,
        "mean tokens of an answer differ by more than 1 % and at most 10 %",
        "throughput and E2EL are of other answers; TPOT is not touched",
        _somewhat_shorter,
    ),
    Item(
        "requests",
        _REFUSED,
        "numbers of requests differ (not where both sent for a time)",
        "the first and the last wave are another share of the time: 100 at 8 at a time are 12.5 waves that "
        "take 13, 4 % of the throughput",
        _other(_requests, "requests: {}"),
    ),
    Item(
        "concurrency",
        _REFUSED,
        "limits of requests under way differ",
        "another load",
        _other(_concurrency, "concurrency {}"),
    ),
    Item(
        "request rate",
        _REFUSED,
        "rates configured differ, or one is unlimited",
        "another load",
        _other(_rate, "{} requests/s"),
    ),
    Item(
        "spread of the load",
        _REFUSED,
        "range ratio, shared prefix or burstiness differ",
        "another load with the same means",
        _other(_shape, "{}"),
    ),
    Item(
        "formula",
        _REFUSED,
        "speeds are of different formulas (output/time, (prompt+output)/time), and nothing else is told",
        "other quantities with one unit",
        _formulas,
    ),
    Item(
        "simulation",
        _REFUSED,
        "one side's figures are of the embedded engine",
        "no model ran",
        _other(_simulated, "{}"),
    ),
    Item(
        "machine",
        _REFUSED,
        "the machines' names differ",
        "the ratio is of the machines as much as of the checkpoints",
        _other(lambda run: run.machine, "on {}"),
    ),
    Item(
        "power mode",
        _REFUSED,
        "power modes differ",
        "the same: another machine in effect",
        _other(lambda run: run.power_mode, "power mode {}"),
    ),
    Item(
        "engine",
        _MARKED,
        "engine or its version differ",
        "it is the engine that is compared, or both",
        _other(lambda run: run.engine, "{}"),
    ),
    Item(
        "client",
        _MARKED,
        "figures are told by different clients",
        "their TTFT, TPOT and ITL are not defined alike (docs/metrics.md)",
        _other(lambda run: run.told_by, "figures by {}"),
    ),
    Item(
        "transport", _MARKED, "wire and httpx", "httpx adds the client's own delay", _other(_transport, "{}")
    ),
    Item(
        "stream", _MARKED, "one was not streamed", "its server sent no single tokens", _other(_streamed, "{}")
    ),
    Item(
        "prompts",
        _MARKED,
        "token ids and text",
        "lengths and the server's tokenising differ",
        _other(_prompts, "prompts as {}"),
    ),
    Item(
        "warm-up",
        _MARKED,
        "one was not warmed up",
        "its first requests pay for what is done once",
        _other(_warm, "{}"),
    ),
    Item(
        "repeated prompts",
        _MARKED,
        "prompts occur twice in one of the plans",
        "a prefix cache answers them",
        _other(_cache, "{}"),
    ),
    Item(
        "request",
        _MARKED,
        "sampling, backend, ignore_eos or another key of the request differ",
        "the server does something else",
        _request,
    ),
    Item(
        "server",
        _MARKED,
        "settings of the server differ: prefix caching, CUDA graphs, speculative decoding, KV dtype, …",
        "it may be the setting that is compared",
        _server,
    ),
)
