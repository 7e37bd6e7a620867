"""Exposition: what a server's `/metrics` says, in one set of words whichever engine wrote it."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

import msgspec

from loadgen.protocol import untrusted

Series = tuple[str, str, str]  # model, quantity, and which part of it: a reason, a bucket's bound, "sum"
GAUGES = frozenset({"running", "waiting", "kv_cache_usage", "started"})  # the others only grow
SAMPLED = GAUGES | {"generation_tokens"}

_GREATEST = ("kv_cache_usage", "started")  # of several engines these are not added up
# Each rank of a SGLang that shows them all counts the same requests, and each process has its own row.
_REPEATED = ("tp_rank", "pp_rank", "moe_ep_rank", "pid")
_REPEATED_GAUGE = (*_REPEATED, "priority")  # beside the whole, what each priority has of it
_LONGEST_WORDS = 60
# The parser's time grows with the square of a line: real lines have some hundred characters, and few models
# and engines behind one port come to more lines than these.
_LONGEST_LINE, _MOST_LINES, _MOST_CHARS = 2048, 20_000, 1 << 22


class Meaning(msgspec.Struct, frozen=True):
    """What the samples of one name are: a quantity, and which part of it, as they say or their label."""

    quantity: str
    part: str = ""
    label: str = ""


class Names(msgspec.Struct, frozen=True):
    """One engine's names for what matters; `lazy` are the counters that appear with their first event."""

    meanings: Mapping[str, Meaning]
    lazy: frozenset[str] = frozenset()
    off: str = ""  # the flag without which it has no /metrics


def _histogram(name: str, quantity: str) -> dict[str, Meaning]:
    return {f"{name}_bucket": Meaning(quantity, label="le"), f"{name}_sum": Meaning(quantity, "sum")}


_STARTED = {"process_start_time_seconds": Meaning("started")}
NAMES: dict[str, Names] = {
    "vllm": Names(
        {
            **_STARTED,
            "vllm:prompt_tokens_total": Meaning("prompt_tokens"),
            "vllm:generation_tokens_total": Meaning("generation_tokens"),
            "vllm:request_success_total": Meaning("requests", label="finished_reason"),
            "vllm:prefix_cache_queries_total": Meaning("prefix_queries"),
            "vllm:prefix_cache_hits_total": Meaning("prefix_hits"),
            "vllm:num_preemptions_total": Meaning("preemptions"),
            "vllm:spec_decode_num_draft_tokens_total": Meaning("draft_tokens"),
            "vllm:spec_decode_num_accepted_tokens_total": Meaning("accepted_tokens"),
            "vllm:num_requests_running": Meaning("running"),
            "vllm:num_requests_waiting": Meaning("waiting"),
            "vllm:kv_cache_usage_perc": Meaning("kv_cache_usage"),
            "vllm:gpu_cache_usage_perc": Meaning("kv_cache_usage"),  # to 0.10
            **_histogram("vllm:time_to_first_token_seconds", "ttft"),
            **_histogram("vllm:inter_token_latency_seconds", "itl"),
            **_histogram("vllm:e2e_request_latency_seconds", "e2e"),
            **_histogram("vllm:request_queue_time_seconds", "queue"),
        }
    ),
    "sglang": Names(
        {
            **_STARTED,
            "sglang:prompt_tokens_total": Meaning("prompt_tokens"),
            "sglang:generation_tokens_total": Meaning("generation_tokens"),
            "sglang:num_requests_total": Meaning("requests"),
            "sglang:num_aborted_requests_total": Meaning("requests", "abort"),
            "sglang:cached_tokens_total": Meaning("prefix_hits"),
            "sglang:num_retracted_requests_total": Meaning("preemptions"),
            "sglang:num_running_reqs": Meaning("running"),
            "sglang:num_queue_reqs": Meaning("waiting"),
            "sglang:token_usage": Meaning("kv_cache_usage"),
            **_histogram("sglang:time_to_first_token_seconds", "ttft"),
            **_histogram("sglang:inter_token_latency_seconds", "itl"),
            **_histogram("sglang:e2e_request_latency_seconds", "e2e"),
            **_histogram("sglang:queue_time_seconds", "queue"),
        },
        lazy=frozenset({"prompt_tokens", "generation_tokens", "requests", "prefix_hits", "preemptions"}),
        off="--enable-metrics",
    ),
}


class Selection(msgspec.Struct, frozen=True):
    """The lines of an answer that matter, not yet parsed; or why there are none, in words."""

    names: str = ""  # a key of NAMES
    lines: tuple[str, ...] = ()
    trouble: str = ""


class Snapshot(msgspec.Struct, frozen=True):
    """What a server said at one moment, summed over its engines; or why nothing, in words."""

    names: str = ""
    counters: Mapping[Series, float] = msgspec.field(default_factory=dict)  # histograms by bound, cumulative
    gauges: Mapping[Series, float] = msgspec.field(default_factory=dict)
    trouble: str = ""

    def gauge(self, quantity: str, model: str = "") -> float | None:
        """One model's gauge, or all models' together; None where the server has none."""
        found = [
            value for (of, name, _), value in self.gauges.items() if name == quantity and model in ("", of)
        ]
        return _together(quantity, found) if found else None


def select(status: int, body: bytes, wanted: Container[str] | None = None) -> Selection:
    """The lines of an answer that NAMES knows, of all quantities or the wanted; does not parse.

    The parser is slow and late to import; this is neither, so it can be done beside a run.
    """
    if status != 200:
        flags = ", ".join(f"{name} needs {names.off}" for name, names in NAMES.items() if names.off)
        return Selection(trouble=f"/metrics answers {status}" + (f" ({flags})" if status == 404 else ""))
    text = body.decode("utf-8", "replace")
    if not text.strip():
        return Selection(trouble="/metrics is empty")
    if text.lstrip()[0] in "<{[":
        kind = "HTML" if text.lstrip()[0] == "<" else "JSON"
        return Selection(trouble=f"/metrics is {kind}, not Prometheus text")
    lines = text.splitlines()
    whose = next((name for name in NAMES if any(line.startswith(f"{name}:") for line in lines)), "")
    if not whose:
        return Selection(trouble="/metrics has none of the names of " + " or ".join(NAMES))
    if not text.endswith("\n"):
        return Selection(trouble=f"/metrics is cut off in {_words(lines[-1])!r}")
    meanings = NAMES[whose].meanings
    if wanted is not None:
        meanings = {name: meaning for name, meaning in meanings.items() if meaning.quantity in wanted}
    selected = tuple(line for line in lines if _name(line) in meanings)
    longest = max(selected, key=len, default="")
    if len(longest) > _LONGEST_LINE:
        return Selection(trouble=f"/metrics has a line of {len(longest)} characters: {_words(longest)!r}")
    if len(selected) > _MOST_LINES or sum(map(len, selected)) > _MOST_CHARS:
        return Selection(trouble=f"/metrics has {len(selected)} lines of {whose}'s: too many to be read")
    return Selection(whose, selected)


def parse(selection: Selection) -> Snapshot:
    """What the selected lines say, each rank's repetition left out and the engines put together."""
    if selection.trouble:
        return Snapshot(trouble=selection.trouble)
    from prometheus_client.parser import text_string_to_metric_families

    meanings = NAMES[selection.names].meanings
    rows: dict[Series, dict[tuple[tuple[str, str], ...], float]] = {}
    for line in selection.lines:
        try:  # without its TYPE line each sample is a family, under its own name
            (family,) = text_string_to_metric_families(line + "\n")
            (sample,) = family.samples
        except ValueError:
            return Snapshot(trouble=f"/metrics is malformed in {_words(line)!r}")
        meaning = meanings.get(sample.name)
        if meaning is None:
            return Snapshot(trouble=f"/metrics is malformed in {_words(line)!r}")
        repeated = _REPEATED_GAUGE if meaning.quantity in GAUGES else _REPEATED
        labels = {name: value for name, value in sample.labels.items() if name not in repeated}
        part = labels.pop(meaning.label, "") if meaning.label else meaning.part
        if untrusted.number(sample.value) is None or (meaning.label == "le" and not _bounds(part)):
            continue  # no count, and no bucket, that a server can have
        series = (
            untrusted.text(labels.pop("model_name", "")),
            meaning.quantity,
            untrusted.text(part),
        )
        places, place = rows.setdefault(series, {}), tuple(sorted(labels.items()))
        places[place] = max(places.get(place, sample.value), sample.value)
    sums = {series: _together(series[1], list(places.values())) for series, places in rows.items()}
    values = {series: value for series, value in sums.items() if untrusted.number(value) is not None}
    return Snapshot(
        selection.names,
        counters={series: value for series, value in values.items() if series[1] not in GAUGES},
        gauges={series: value for series, value in values.items() if series[1] in GAUGES},
    )


def _bounds(part: str) -> bool:
    """Whether it is a bucket's upper bound in seconds: a number, or +Inf."""
    return untrusted.number(part) is not None or part in ("+Inf", "Inf", "inf")


def _together(quantity: str, values: Sequence[float]) -> float:
    return max(values) if quantity in _GREATEST else sum(values)


def _name(line: str) -> str:
    return line.partition("{")[0].partition(" ")[0]


def _words(line: str) -> str:
    return line[:_LONGEST_WORDS]
