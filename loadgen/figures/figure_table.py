"""Figures: every latency, speed and rate of a run, a row each: its samples, names and forms.

One more figure is one more row here, with its samples as a column of `PerRequest` and its field in `Metrics`.
Everything that shows, stores, reads or judges figures iterates over the table, and the names that people use
for figures are found in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal

import msgspec
from msgspec.structs import force_setattr

from loadgen.base.arrays import Bool, Float64, Int64
from loadgen.base.errors import UsageError
from loadgen.base.parsing import suggest_name
from loadgen.base.text import quote_value
from loadgen.figures.per_request import PerRequest

# Nanoseconds or tokens per second of each request, and which requests have one.
Samples = Callable[[PerRequest], tuple[Int64 | Float64, Bool]]

LATENCY, SPEED, COUNT, PEAK, OURS, RESULT = "latency", "speed", "count", "peak", "ours", "result"
UNIT_SUFFIXES = {"ms": "ms", "tok/s": "tok_s"}  # of the names of numbers in a unit
_WORDS = ("mean", "median", "std")
CLIENTS = {"sglang": "SGLang", "trtllm": "TensorRT-LLM"}  # that are written otherwise than in `names`
DEFAULT_METRICS = ("ttft", "tpot", "itl")
_STATISTIC = re.compile(r"(?:(?P<word>mean|avg|average|median|max|p\d+(?:\.\d+)?)_)?(?P<figure>.+)")
_LAST = re.compile(r"(?P<figure>.+)_(?P<word>mean|avg|average|median|max|p\d+(?:\.\d+)?)")
_SAME = {"avg": "mean", "average": "mean", "p50": "median"}
# People write these for a rate; every other name is made of the table's rows.
_RATE_WORDS = {
    "tok/s": "output_throughput",
    "tokens/s": "output_throughput",
    "throughput": "output_throughput",
    "req/s": "request_throughput",
    "requests/s": "request_throughput",
    "rps": "request_throughput",
}
_EXAMPLES = "tok/s, req/s, ttft, ttft_p99, tpot, itl_p99, e2el, goodput"


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of a run: a latency or speed with a distribution, or one number.

    `kind` says which: a LATENCY or SPEED has samples; a COUNT or PEAK is one number under vLLM's key, OURS
    one under a key of ours, and a RESULT stands in `loadgen.metrics` of a result file alone.
    """

    key: str  # in result files, tables and on the command line: ttft, output_throughput
    label: str  # TTFT
    kind: str
    field: str = ""  # of Metrics, where it is not the key
    unit: str = "ms"
    higher_is_better: bool | None = False  # None: neither is
    definition: str = ""  # the formula, as docs/metrics.md has it
    vllm: str = ""  # what `vllm bench serve` computes; of a speed, who else has it
    difference: str = ""  # where the two differ

    # Figures of gaps take no sample per request, since they have several per response.
    samples: Samples = lambda each: (each.e2el_ns, each.ok & ~each.ok)
    of: Literal["requests", "gaps", "tokens"] = "requests"  # what one sample is of
    needs_tokens: bool = True  # the time of a token: a response that is not streamed has none
    phase: Literal["first", "token", "whole"] = "whole"  # of a response, that it measures
    is_common: bool = False  # every client reports it
    of_prompts: bool = False  # it rests on prompt tokens, which may be unknown
    same_as: str = ""  # the figure that it repeats where there is nothing to tell apart

    is_selectable: bool = True  # by --percentile-metrics and --slo
    title: str = ""  # of its section in the result block
    is_extra: bool = False  # its section is printed only where it is asked for by name
    needs_limit: bool = False  # vLLM shows it under --max-concurrency alone
    needs_rate: bool = False  # vLLM shows it at a finite rate alone
    sentence: str = ""  # under the block, of its statistics
    about: str = ""  # on its card of the HTML page; "": it is not on the page
    has_card: bool = True  # False: on the page it stands in the table of latencies alone
    chart: str = ""  # the title of its distribution's chart; "": none
    column: str = ""  # its type among the rows of `loadgen export`; "": not among them
    compared: str = ""  # the figure in whose column `compare` shows it; "": in none
    by_load: tuple[str, ...] = ()  # its statistics that are columns of a table of loads
    titles: tuple[str, ...] = ()  # of columns in other people's tables, in lower case
    names: Mapping[str, str] = {}  # what other clients call it

    def __post_init__(self) -> None:
        if not self.field:
            force_setattr(self, "field", self.key)

    @property
    def suffix(self) -> str:
        """The end of its keys in a result: ttft_ms for p99_ttft_ms; a speed's has no unit, as in vLLM."""
        return f"{self.key}_ms" if self.kind == LATENCY else self.key

    def statistic(self, word: str) -> str:
        """Make the key of one statistic, as p99_ttft_ms of p99; words are mean, median, std, max, p99."""
        return f"{word}_{self.suffix}"

    def words_of(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Strip the unit from a distribution's field names: mean_ms becomes mean."""
        return {name.removesuffix(f"_{UNIT_SUFFIXES[self.unit]}"): value for name, value in values.items()}

    def statistics(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Map a distribution's fields to result keys: mean, median, std, percentiles; None if n is 0."""
        words = self.words_of(values)
        named = {self.statistic(word): words[word] for word in _WORDS}
        for rank, value in words["percentiles"].items():
            named[self.statistic(f"p{rank if isinstance(rank, str) else percentile_name(rank)}")] = value
        return named if words["n"] else dict.fromkeys(named)


# fmt: off
LATENCY_ROWS = (
    Figure(
        key="ttft", label="TTFT", kind=LATENCY, phase="first", is_common=True,
        samples=lambda each: (each.ttft_ns, each.has_ttft), definition="arrival of the first chunk − sent",
        vllm="first event with non-empty `choices` − entry of the request function",
        difference="Theirs begins before JSON encoding and, on a new connection, before connect and TLS. "
        "In chat the role chunk is their first token: servers that send it when the request is admitted "
        "get a TTFT without any prefill. Their timestamp is taken when the event loop gets round to the "
        "read",
        title="Time to First Token", chart="Time to first token", column="int64", compared="ttft",
        by_load=("mean", "median", "p99"),
        about="Time to first token: from sending a request until its first token arrived. The queue and "
        "the prefill of the prompt are in it.",
        titles=("ttft", "time to first token", "e2e ttft"),
        names={"aiperf": "time_to_first_token", "sglang": "ttft", "trtllm": "TTFT",
               "inference-perf": "time_to_first_token"},
    ),
    Figure(
        key="tpot", label="TPOT", kind=LATENCY, phase="token", is_common=True,
        samples=lambda each: (each.tpot_ns(), each.has_tpot),
        definition="(E2EL − TTFT) / (output tokens − 1), requests with more than one token", vllm="the same",
        difference="none in the formula. When the first chunk carries several tokens, both divide by too "
        "many intervals: compare with *token time*",
        title="Time per Output Token (excl. 1st token)", chart="Time per output token", column="double",
        compared="tpot", by_load=("mean",),
        about="Time per output token: of each request, the time from its first token to its last, divided "
        "by the tokens after the first. One value a request.",
        titles=("tpot", "time per output token"),
        names={"aiperf": "inter_token_latency", "sglang": "tpot", "trtllm": "TPOT",
               "inference-perf": "time_per_output_token"},
    ),
    Figure(
        key="itl", label="ITL", kind=LATENCY, phase="token", of="gaps", is_common=True,
        definition="gaps between successive chunks of one request, pooled over requests: one value per "
        "chunk",
        vllm="the same over events with `choices`",
        difference="theirs has a phantom gap of about 0 ms per chat request (role chunk), and one for a "
        "finish-only chunk",
        title="Inter-token Latency", chart="Inter-token latency", compared="tpot",
        about="Inter-token latency: the time between two chunks of a stream, of all requests together. "
        "One value a chunk; with several tokens in a chunk it is longer than the time per token.",
        titles=("itl", "inter-token latency", "inter token latency", "tbt", "time between tokens"),
        names={"aiperf": "inter_chunk_latency", "sglang": "itl"},
    ),
    Figure(
        key="e2el", label="E2EL", kind=LATENCY, needs_tokens=False, is_common=True,
        samples=lambda each: (each.e2el_ns, each.ok),
        definition="arrival of the last chunk − sent; without streaming: end − sent",
        vllm="last event with `choices` − entry",
        difference="A trailing chunk with only `finish_reason` is their last token, not ours",
        title="End-to-end Latency", chart="End-to-end latency", column="int64", compared="e2el",
        by_load=("mean",),
        about="End-to-end latency: from sending a request until its last token arrived.",
        titles=("e2e", "e2el", "end-to-end latency", "end to end latency", "e2e latency", "request latency",
                "latency", "lat."),
        names={"aiperf": "request_latency", "sglang": "e2e_latency", "trtllm": "Latency",
               "inference-perf": "request_latency"},
    ),
    Figure(
        key="client_queue_time", field="queue_time", label="Client Queue Time", kind=LATENCY,
        needs_tokens=False, samples=lambda each: (each.queue_ns, each.ok), definition="sent − intended",
        vllm="request function's entry − creation of its task",
        difference="theirs cannot see lateness against the schedule, since the task itself is created late",
        title="Client-side Queueing", needs_limit=True,
    ),
    Figure(
        key="e2el_including_client_queue", field="e2el_intended", label="E2EL incl. Client Queue",
        kind=LATENCY, needs_tokens=False, samples=lambda each: (each.e2el_ns + each.queue_ns, each.ok),
        definition="last chunk − intended", vllm="E2EL + client queue time", difference="as above",
        title="Queue-inclusive End-to-end Latency", needs_limit=True, needs_rate=True,
    ),
    Figure(
        key="token_time", label="Token time", kind=LATENCY, phase="token", of="tokens", same_as="itl",
        definition="each of those gaps divided by the tokens of the chunk that ended it, one value per "
        "token",
        vllm="none",
        difference="with one token a chunk it equals ITL. With speculative decoding or a stream interval "
        "ITL is the time between chunks, token time the time per token",
        title="Time per Token (gaps shared by tokens)", has_card=False,
        about="The times between chunks, each shared by the tokens of its chunk. One value a token; "
        "with one token a chunk it is the ITL.",
    ),
    Figure(
        key="ttfvt", label="TTFVT", kind=LATENCY, phase="first", same_as="ttft",
        samples=lambda each: (each.ttfvt_ns, each.has_ttfvt),
        definition="time to first visible token: arrival of the first chunk with visible text − sent, of "
        "the successes that have one",
        vllm="none",
        difference="Text of the response itself or of a tool call (its name, its arguments) is visible; "
        "`reasoning` and `reasoning_content` are not. Where nothing reasons it is TTFT. A response that "
        "ends within its reasoning has none. A reasoning model whose server has no reasoning parser sends "
        "its thoughts as content: then they are visible. AIPerf's *time to first output token*",
        title="Time to First Visible Token", is_extra=True, column="int64",
        sentence="TTFVT (first visible token): {mean:.2f} ms mean, {median:.2f} median",
        about="Time to first visible token: from sending a request until the first text arrived that is "
        "not reasoning. Without reasoning it is the TTFT.",
    ),
    Figure(
        key="e2el_per_token", label="E2EL per token", kind=LATENCY, phase="token", needs_tokens=False,
        samples=lambda each: (each.e2el_per_token_ns(), each.has_tokens),
        definition="E2EL / output tokens, successes with a token; not streamed too", vllm="none",
        difference="The *normalized latency* of vLLM's paper (Kwon et al., SOSP 2023), inference-perf's "
        "NTPOT. Unlike TPOT it has the TTFT in it",
        title="Normalized Latency (E2EL / output tokens)", is_extra=True, has_card=False,
        sentence="E2EL per output token: {mean:.2f} ms mean",
        about="End-to-end latency of each request, divided by its output tokens. One value a request.",
        names={"inference-perf": "normalized_time_per_output_token"},
    ),
    Figure(
        key="ttft_intended", label="TTFT from intended", kind=LATENCY, phase="first", is_selectable=False,
        samples=lambda each: (each.ttft_ns + each.queue_ns, each.has_ttft),
        definition="first chunk − intended", vllm="none",
        difference="the corrected TTFT, in our part of the JSON",
    ),
)
SPEED_ROWS = (
    Figure(
        key="prefill_speed", label="Prefill Speed", kind=SPEED, unit="tok/s", higher_is_better=True,
        phase="first", samples=lambda each: (each.prefill_tok_s(), each.has_prefill),
        definition="input tokens / TTFT, requests whose prompt tokens are known (usage, else the planned "
        "length). All of the prompt is counted, cached tokens too, and all of the TTFT, the time in the "
        "server's queue too: with a prefix cache it is higher than the server computes, with requests that "
        "wait it is lower. One request at a time with new prompts (`--max-concurrency 1`) measures the "
        "server's prefill",
        vllm="AIPerf: *prefill throughput per user*, the same formula",
        title="Prefill Speed (input tokens / TTFT)", is_extra=True,
        sentence="prefill: {mean:,.0f} tok/s mean, {median:,.0f} median (input tokens / TTFT)",
    ),
    Figure(
        key="prefill_behind", label="", kind=RESULT, unit="requests", higher_is_better=None,
        definition="of these requests, those that were sent while another had no token yet: they may have "
        "waited for its prefill",
        vllm="none",
    ),
    Figure(
        key="prefill_queued", label="", kind=RESULT, unit="share", higher_is_better=None,
        definition="Σ server-reported time in its queue / Σ TTFT, over the requests that report it (vLLM's "
        "`--enable-per-request-metrics`)",
        vllm="none",
    ),
    Figure(
        key="tps_user", label="Output per User", kind=SPEED, unit="tok/s", higher_is_better=True,
        phase="token", samples=lambda each: (each.user_tok_s(), each.has_user_speed),
        definition="(output tokens − those of the first chunk) / (E2EL − TTFT), requests with a token "
        "after the first chunk: what one user sees stream in. 1 / TPOT where the first chunk has one "
        "token",
        vllm="AA-AgentPerf: *output speed*, the tokens per second after the first chunk "
        "([methodology](https://artificialanalysis.ai/methodology/agentperf), 2026-07). AIPerf: *output "
        "token throughput per user*, InferenceX: *interactivity*, both 1 / our TPOT",
        title="Output per User (after 1st message)", is_extra=True,
        sentence="per user: {mean:.1f} tok/s mean, {min:.1f} least (after the first chunk)",
    ),
    Figure(
        key="output_throughput_per_gpu", field="output_throughput_per_gpu_per_s", label="per GPU", kind=OURS,
        sentence="per GPU: {:.1f} output tok/s",
        unit="tok/s", higher_is_better=True, definition="output throughput / GPUs, one number a run",
        vllm="InferenceMAX: tok/s per GPU",
    ),
)
RATE_ROWS = (
    Figure(key="cached_share", label="cached", kind=OURS, unit="share", higher_is_better=None),
    Figure(
        key="duration", field="duration_s", label="duration", kind=COUNT, unit="s", higher_is_better=False,
        definition="earliest sent → latest end, over every request that was sent, failed ones included",
        vllm="clock before the dispatch loop → after all tasks are gathered",
        difference="theirs includes the creation of all tasks, the first gap of a finite rate (so the "
        "configured rate is never reached), the probe task, and the client's own backlog at the end",
    ),
    Figure(key="completed", label="successful requests", kind=COUNT, unit="requests", higher_is_better=None),
    Figure(key="failed", label="failed requests", kind=COUNT, unit="requests", higher_is_better=None),
    Figure(
        key="total_input_tokens", label="input tokens", kind=COUNT, unit="tokens", higher_is_better=None,
        of_prompts=True,
    ),
    Figure(
        key="total_output_tokens", label="output tokens", kind=COUNT, unit="tokens", higher_is_better=None,
    ),
    Figure(
        key="request_throughput", field="request_throughput_per_s", label="request throughput", kind=COUNT,
        unit="req/s", higher_is_better=True, definition="successes / duration", vllm="the same",
    ),
    Figure(
        key="request_goodput", field="goodput_per_s", label="goodput", kind=COUNT, unit="req/s",
        higher_is_better=True, vllm="the same",
        definition="successes at or under every objective / duration; a one-token response has TPOT 0",
    ),
    Figure(
        key="output_throughput", field="output_throughput_per_s", label="output throughput", kind=COUNT,
        unit="tok/s", higher_is_better=True, vllm="the same",
        definition="Σ output tokens of successes / duration",
    ),
    Figure(
        key="total_token_throughput", field="total_throughput_per_s", label="total throughput", kind=COUNT,
        unit="tok/s", higher_is_better=True, of_prompts=True, vllm="the same",
        definition="Σ (input + output tokens) of successes / duration",
    ),
    Figure(
        key="max_output_tokens_per_s", field="peak_output_throughput_per_s", label="peak output throughput",
        kind=PEAK, unit="tok/s", higher_is_better=True,
        definition="the most tokens of successes in any window (t − 1 s, t]; in a run shorter than 1 s the "
        "window is the run, and the count is divided by it",
        vllm="the fullest of the one-second buckets counted from the first start, one per event",
        difference="theirs counts chunks as tokens, phantom events too, and buckets miss a burst that "
        "straddles two of them: it can lie far below the average",
    ),
    Figure(
        key="max_concurrent_requests", field="peak_concurrency", label="peak concurrency", kind=PEAK,
        unit="requests", higher_is_better=None,
        definition="the most requests between sent and end at one instant, failed ones included; one that "
        "ends as another starts is over",
        vllm="the most requests that touch one whole-second bucket",
        difference="theirs counts three requests in a row as three at once",
    ),
    Figure(
        key="mean_concurrency", label="mean concurrency", kind=RESULT, unit="requests", higher_is_better=None,
        definition="Σ (end − sent) / duration, over every request that was sent", vllm="none",
        difference="SGLang's \"Concurrency\", with failures",
    ),
    Figure(
        key="slo_attainment", label="attainment", kind=RESULT, unit="share", higher_is_better=None,
        definition="such successes / all requests that were neither cancelled as planned nor cut off",
        vllm="none",
        difference="SGLang's",
    ),
)
# fmt: on
FIGURES = (*LATENCY_ROWS, *SPEED_ROWS, *RATE_ROWS)
LATENCIES = tuple(figure for figure in FIGURES if figure.kind == LATENCY)
SPEEDS = tuple(figure for figure in FIGURES if figure.kind == SPEED)
COUNTS, PEAKS, OWN = (
    tuple(figure for figure in FIGURES if figure.kind == kind) for kind in (COUNT, PEAK, OURS)
)
COMMON = tuple(figure for figure in FIGURES if figure.is_common)
# --percentile-metrics and an objective may name these.
SELECTABLE = {figure.key: figure for figure in (*LATENCIES, *SPEEDS) if figure.is_selectable}
_SGLANGS = frozenset({"total_input_text_tokens", "input_throughput"})  # under its keys, which have no row
OF_PROMPTS = frozenset(figure.key for figure in FIGURES if figure.of_prompts) | _SGLANGS
_BY_SUFFIX = {figure.suffix: figure for figure in SELECTABLE.values()}
_BY_KEY = {figure.key: figure for figure in FIGURES}


def find_figure(key: str) -> Figure | None:
    """Find the figure of a result's key, as p99_itl_ms or output_throughput; None if no figure has it."""
    return _BY_KEY.get(key) or _BY_SUFFIX.get(key.partition("_")[2])


def figures_named_by(client: str) -> dict[str, Figure]:
    """Map another client's names of figures to the figures; {} for an unknown client."""
    return {figure.names[client]: figure for figure in FIGURES if client in figure.names}


def percentile_name(percentile: float) -> str:
    """Write a percentile as keys and labels do: 99, 99.9."""
    return str(int(percentile)) if percentile == int(percentile) else str(percentile)


def parse_metrics(text: str) -> tuple[str, ...]:
    """Parse `--percentile-metrics ttft,tpot,itl` to keys, each once; raises UsageError for an unknown one."""
    keys = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if unknown := [key for key in keys if key not in SELECTABLE]:
        which = f"unknown metric {unknown[0]!r}: choose from {', '.join(SELECTABLE)}"
        raise UsageError(f"--percentile-metrics {text}: {which}")
    return keys


def parse_percentiles(text: str) -> tuple[float, ...]:
    """Parse `--metric-percentiles 50,90,99.9`, each once, 0 and 100 included; raises UsageError."""
    percentiles: dict[float, None] = {}
    for part in text.split(","):
        try:
            value = float(part)
        except ValueError:
            raise UsageError(f"--metric-percentiles {text}: {part.strip()!r} is not a number") from None
        if not 0 <= value <= 100:
            raise UsageError(f"--metric-percentiles {text}: {part.strip()} is not between 0 and 100")
        percentiles[value] = None
    return tuple(percentiles)


def find_named_figure(name: str) -> tuple[Figure, str]:
    """Find the figure of speed that a name means, as ttft_p99, and its key: of the mean if none is named.

    Raises ValueError, with the nearest name, where it means none, or a statistic of what is one number.
    """
    plain = _normalize(name)
    figures = _list_figures()
    for pattern in (_STATISTIC, _LAST):
        match = pattern.fullmatch(plain)
        figure = figures.get(match["figure"]) if match else None
        if match is None or figure is None:
            continue
        word = match["word"] or ""
        if figure.kind in (LATENCY, SPEED):
            return figure, figure.statistic(_SAME.get(word, word) or "mean")
        if word:
            raise ValueError(f"{name}: {figure.label} is one number a run: leave {word} out")
        return figure, figure.key
    known = list(figures)
    for own, row in figures.items():
        if row.kind in (LATENCY, SPEED):
            known += [f"{own}_{word}" for word in ("p50", "p90", "p95", "p99", "mean", "median")]
    near = suggest_name(plain, known)
    raise ValueError(f"{quote_value(name)}: no such figure{near}; there are {_EXAMPLES}, …")


def _normalize(name: str) -> str:
    """Write a name as keys have it: lower case, words joined by _, without a unit of time at the end."""
    return re.sub(r"[\s_-]+", "_", name.strip().lower()).removesuffix("_ms")


@cache
def _list_figures() -> dict[str, Figure]:
    """Map each name that people use to its figure, of those that rank speed; of equal names the first."""
    figures: dict[str, Figure] = {}
    for figure in FIGURES:
        if figure.kind == RESULT or figure.higher_is_better is None:
            continue
        for name in (figure.key, figure.label, figure.suffix, *figure.titles):
            figures.setdefault(_normalize(name), figure)
    keys = {figure.key: figure for figure in figures.values()}
    return {**figures, **{word: keys[key] for word, key in _RATE_WORDS.items()}}
