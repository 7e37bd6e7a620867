"""Prometheus: a server's `/metrics` under one set of names, whichever engine it is."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from loadgen.base import untrusted
from loadgen.engines.engine import METRICS_PATH, EngineMetrics, MetricSeries
from loadgen.engines.engines import METRICS

if TYPE_CHECKING:
    from prometheus_client.samples import Sample

Series = tuple[str, str, str]  # model, quantity, and which part of it: a reason, a bucket's bound, "sum"
GAUGES = frozenset({"running", "waiting", "kv_cache_usage", "started", "accept_length"})  # others only grow
SAMPLED = GAUGES | {"generation_tokens", "preemptions"}
_GREATEST = ("kv_cache_usage", "started", "accept_length")  # of several engines the greatest, not the sum
# Every rank of SGLang counts the same requests, and each process has a row of its own.
_REPEATED = ("tp_rank", "pp_rank", "moe_ep_rank", "pid")
_LONGEST_QUOTE = 60
_SWITCHED_OFF = (404, 501)  # statuses of a server without it
# The parser's time grows with the square of a line. Real lines have some hundred characters, and the models
# and engines behind one port rarely have more lines.
_LONGEST_LINE, _MOST_LINES, _MOST_CHARS = 2048, 20_000, 1 << 22
_ENDLESS = ("+Inf", "Inf", "inf")


class MetricLines(msgspec.Struct, frozen=True):
    """The lines of a /metrics answer that hold known metrics, not yet parsed; or an error."""

    names: str = ""  # a key of METRICS
    lines: tuple[str, ...] = ()
    error: str = ""


class MetricsSnapshot(msgspec.Struct, frozen=True):
    """A server's metrics at one moment, summed over its engines; or an error."""

    names: str = ""
    counters: Mapping[Series, float] = msgspec.field(default_factory=dict)  # histograms by bound, cumulative
    gauges: Mapping[Series, float] = msgspec.field(default_factory=dict)
    error: str = ""

    def gauge(self, quantity: str, model: str = "") -> float | None:
        """Return a gauge of one model, or all models' sum, of KV cache use the greatest; None if unknown."""
        gauges = self.gauges.items()
        values = [value for (owner, name, _), value in gauges if name == quantity and model in ("", owner)]
        return combine_values(quantity, values) if values else None


def select_lines(status: int, body: bytes, wanted: Container[str] | None = None) -> MetricLines:
    """Select a /metrics answer's lines with known metrics, all or of `wanted` quantities; else say its error.

    It does not parse them: the parser is slow, and this is called during a run.
    """
    if status != 200:
        flags = ", ".join(f"{name} needs {names.flag}" for name, names in METRICS.items() if names.flag)
        hint = f" ({flags})" if status in _SWITCHED_OFF else ""
        return MetricLines(error=f"/metrics answers {status}{hint}")
    text = body.decode("utf-8", "replace")
    if why := explain_other_text(text):
        elsewhere = (f"{row.name}'s is at {row.path}" for row in METRICS.values() if row.path != METRICS_PATH)
        paths = " and ".join(elsewhere) if "JSON" in why else ""
        return MetricLines(error=f"/metrics {why}{paths and f' ({paths})'}")
    lines = text.splitlines()
    # An engine is recognised by a line that begins with one of its marks.
    marked = (
        row.name
        for row in METRICS.values()
        if text.startswith(row.marks) or any(f"\n{mark}" in text for mark in row.marks)
    )
    whose = next(marked, "")
    if not whose:
        *others, last = METRICS
        return MetricLines(error=f"/metrics has none of the names of {', '.join(others)} or {last}")
    if why := explain_cut(text):
        return MetricLines(error=f"/metrics {why}")
    meanings = METRICS[whose].meanings
    if wanted is not None:
        meanings = {name: meaning for name, meaning in meanings.items() if meaning.quantity in wanted}
    selected = tuple(line for line in lines if read_name(line) in meanings)
    if why := explain_excess(selected, whose):
        return MetricLines(error=f"/metrics {why}")
    return MetricLines(whose, selected)


def explain_other_text(text: str) -> str:
    """Explain what an answer is that is no exposition, as the end of a sentence; "" if it may be one."""
    if not text.strip():
        return "is empty"
    if text.lstrip()[0] in "<{[":
        kind = "HTML" if text.lstrip()[0] == "<" else "JSON"
        return f"is {kind}, not Prometheus text"
    return ""


def explain_cut(text: str) -> str:
    """Explain where an exposition is cut off, as the end of a sentence; "" if its last line is whole."""
    return "" if text.endswith("\n") else f"is cut off in {text.splitlines()[-1][:_LONGEST_QUOTE]!r}"


def read_name(line: str) -> str:
    """Return the name that a line of an exposition begins with; of a comment or a blank line no metric's."""
    return line.partition("{")[0] if "{" in line else line.partition(" ")[0]


def explain_excess(lines: Sequence[str], whose: str) -> str:
    """Explain, as a sentence's end, why lines of `whose` metrics are too many or long to parse; "" if not."""
    longest = max(lines, key=len, default="")
    if len(longest) > _LONGEST_LINE:
        return f"has a line of {len(longest)} characters: {longest[:_LONGEST_QUOTE]!r}"
    if len(lines) > _MOST_LINES or sum(map(len, lines)) > _MOST_CHARS:
        return f"has {len(lines)} lines of {whose}'s: too many to be read"
    return ""


def parse_line(line: str) -> Sample:
    """Parse one line, without TYPE and HELP, as a sample: name, labels and value; raises ValueError."""
    from prometheus_client.parser import text_string_to_metric_families  # it brings a server along

    # Samples without a TYPE line are a family of their own name each.
    families = list(text_string_to_metric_families(line + "\n"))
    if len(families) != 1 or len(families[0].samples) != 1:
        raise ValueError("not one sample")
    return families[0].samples[0]


@lru_cache(maxsize=4)  # what is scraped before and after a run is parsed once more, for what changed
def parse_metrics(selection: MetricLines) -> MetricsSnapshot:
    """Parse selected lines, without the copies that ranks report, summed over engines.

    Impossible values are left out; a line that cannot be parsed makes the snapshot an error.
    """
    if selection.error:
        return MetricsSnapshot(error=selection.error)
    row = METRICS[selection.names]
    rows: dict[Series, dict[tuple[tuple[str, str], ...], float]] = {}
    for line in selection.lines:
        try:
            sample = parse_line(line)
            meaning = row.meanings[sample.name]
        except (KeyError, ValueError):
            return MetricsSnapshot(error=f"/metrics is malformed in {line[:_LONGEST_QUOTE]!r}")
        repeated = (*_REPEATED, *row.shares) if meaning.quantity in GAUGES else _REPEATED
        labels = {name: value for name, value in sample.labels.items() if name not in repeated}
        wanted = (*row.only.items(), *meaning.only.items())
        if any(labels.get(label, value) != value for label, value in wanted):
            continue
        part, value = _read_sample(row, meaning, labels.pop(meaning.label, ""), sample.value)
        if value is None:
            continue  # not a possible count or bucket
        model = _read_label(labels.pop(row.model_label, ""))
        series = model, meaning.quantity, _read_label(part)
        places, place = rows.setdefault(series, {}), tuple(sorted(labels.items()))
        places[place] = max(places.get(place, value), value)
    sums = {series: combine_values(series[1], list(places.values())) for series, places in rows.items()}
    values = {series: value for series, value in sums.items() if 0 <= value <= untrusted.MOST}
    return MetricsSnapshot(
        selection.names,
        counters={series: value for series, value in values.items() if series[1] not in GAUGES},
        gauges={series: value for series, value in values.items() if series[1] in GAUGES},
    )


_read_label = lru_cache(maxsize=4096)(untrusted.read_text)  # most lines of an answer repeat a few
_read_bound = lru_cache(maxsize=4096)(untrusted.read_number)


def _read_sample(
    row: EngineMetrics, meaning: MetricSeries, labelled: str, value: float
) -> tuple[str, float | None]:
    """Read which part of its quantity a sample is of, and its value in our units; None if impossible."""
    possible = float(value) if 0 <= value <= untrusted.MOST else None
    if meaning.label == "le":
        if labelled in _ENDLESS:
            return labelled, possible
        bound = _read_bound(labelled)
        if bound is None:
            return labelled, None
        return labelled if meaning.scale == 1 else repr(round(bound * meaning.scale, 9)), possible
    part = meaning.part
    if meaning.label:
        word = labelled.rpartition(".")[2].lower()  # Python's ResponseType.FINISH
        part = row.reasons.get(word, word)
    return part, None if possible is None else possible * meaning.scale


def combine_values(quantity: str, values: Sequence[float]) -> float:
    """Combine the values of several engines: their sum, or of those in `_GREATEST` the greatest."""
    return max(values) if quantity in _GREATEST else sum(values)


def has_restarted(earlier: MetricsSnapshot, later: MetricsSnapshot) -> bool:
    """Whether a counter that both have decreased, or the start time or engine changed, between them."""
    if earlier.names and later.names and earlier.names != later.names:
        return True
    started = earlier.gauge("started"), later.gauge("started")
    if None not in started and started[0] != started[1]:
        return True
    return have_fallen(earlier.counters, {**earlier.counters, **later.counters})


def have_fallen(earlier: Mapping[Series, float], later: Mapping[Series, float]) -> bool:
    """Whether a counter decreased or vanished; a sum of seconds may, where the wall clock is set back."""
    return any(later.get(series, 0.0) < value for series, value in earlier.items() if series[2] != "sum")
