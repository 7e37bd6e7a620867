"""Data lines: what the requests of a run were made of: file, lengths, shared prefixes, a trace's times."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from loadgen.facts.run_facts import Facts
from loadgen.plan.planned_requests import LengthFacts, ScheduleFacts
from loadgen.plan.request_sources import RANDOM, TRACES
from loadgen.records.record import Records
from loadgen.report.load_identity import describe_classes, shorten_digest
from loadgen.report.run_directory import Result
from loadgen.verdict import evidence

_WORDS = "words"  # the format of prompts whose length is set by the server's own count
_MADE = {
    "ids": "random token ids of exactly the planned length, from {ids}",
    "corpus": "text of {text}, of exactly the planned length by the tokenizer {name}",
    _WORDS: "text of {text}, as long as asked by the server's own count",
}
_TEXT = "text whose length depends on the server's tokenizer{tokenizer}"


def describe_prompts(facts: Facts) -> str:
    """Describe the prompts in a line: their file and what of it was left out, or how they were generated."""
    if facts.prompt_replaced:
        return "from --extra-body, the same in every request"
    form, data = facts.prompt_format, facts.data
    how = f"{form}, {_MADE.get(form, _TEXT)}".format(
        ids=facts.ids_source,
        text=data.text or "words",
        name=facts.tokenizer or "of the model",
        tokenizer=f", made with the tokenizer {facts.tokenizer}" if facts.tokenizer else "",
    )
    if data.kind == RANDOM:
        return how
    made = "as the file has them" if form not in _MADE else how
    counted = f", lengths by the tokenizer {facts.tokenizer}" if data.text and facts.tokenizer else ""
    return f"{_describe_rows(facts)}; {data.text or made}{counted}"


def describe_data(result: Result) -> Iterator[str]:
    """Yield lines on lengths, prefix reuse, classes, the load over time and a trace's schedule."""
    facts = result.facts
    if parts := list(_list_lengths(facts, result.records)):
        yield f"lengths: {'; '.join(parts)}"
    if parts := list(_list_reuse(facts, result.records)):
        yield f"reuse: {'; '.join(parts)}"
    if facts.profile.classes:
        yield f"classes: {describe_classes(facts.profile.classes)}"
    if facts.profile.shaped:
        yield f"load over time: {'; '.join(facts.profile.shape_words)}"
    if facts.data.schedule is not None:
        yield f"schedule: {'; '.join(_list_schedule(facts.data.schedule))}"


def summarize_data(result: Result, options: object) -> Iterator[str]:
    """Yield one line with the data's kind, file and rows; nothing for random prompts."""
    if result.facts.data.kind != RANDOM:
        yield f"prompts: {_describe_rows(result.facts, why=False)}"


def name_data(facts: Facts) -> str:
    """Name the data's kind and file in a few words; "" for random prompts."""
    data = facts.data
    return "" if data.kind == RANDOM else " ".join(filter(None, (data.kind, Path(data.file).name)))


def _describe_rows(facts: Facts, why: bool = True) -> str:
    """Describe the data's kind and file, how many rows are sent, and what is changed or left out."""
    data = facts.data
    parts = [data.kind]
    if data.file:
        of = f"{data.sent:,} of {data.rows:,} rows" if data.rows else f"{data.sent:,} rows"
        parts[0] += f", {of} of {Path(data.file).name} ({shorten_digest(facts)})"
    if data.skipped:
        reasons = "; ".join(f"{reason}: {count:,}" for reason, count in data.skipped.items())
        parts.append(f"left out {sum(data.skipped.values()):,}" + (f" ({reasons})" if why else ""))
    if data.clipped:
        parts.append(f"{data.clipped:,} clipped")
    if data.repeated:
        same = "have an earlier prompt" if data.kind in TRACES else "send a row again"
        parts.append(f"{data.repeated:,} requests {same}")
    return "; ".join(parts)


def _list_lengths(facts: Facts, records: Records) -> Iterator[str]:
    """Yield lines on planned lengths, and on those only the server counted; none if all are alike."""
    data, profile = facts.data, facts.profile
    if facts.prompt_format == _WORDS:
        yield from _list_server_lengths(facts, records)
    elif data.input is not None and data.input.least < data.input.most:
        yield _describe_spread("prompts", data.input, _explain_lengths(profile.input_dist, "input", facts))
    elif data.kind != RANDOM:
        counted = LengthFacts.measure(records.input_tokens[records.ok]) if data.input is None else data.input
        how = "" if data.input is not None else "by the server's count"
        yield "prompts of unknown length" if counted is None else _describe_spread("prompts", counted, how)
    if data.output is not None and data.output.least < data.output.most:
        yield _describe_spread("answers", data.output, _explain_lengths(profile.output_dist, "output", facts))
    elif data.kind != RANDOM:
        yield (
            "answers without a limit" if data.output is None else _describe_spread("answers", data.output, "")
        )
    short_of = [facts.requests - each.known for each in (data.input, data.output) if each is not None]
    if data.kind != RANDOM and any(0 < missing < facts.requests for missing in short_of):
        yield f"{max(short_of):,} of {facts.requests:,} requests without a length of their own"


def _describe_spread(what: str, lengths: LengthFacts, how: str) -> str:
    """Describe lengths in tokens: least, greatest, mean and percentiles."""
    by = f", {how}" if how else ""
    if lengths.least == lengths.most:
        return f"{what} {lengths.most:,} tokens each{by}"
    mean = f"mean {lengths.mean:,.1f} sent (P50 {lengths.p50:,}, P90 {lengths.p90:,}, P99 {lengths.p99:,})"
    return f"{what} {lengths.least:,} to {lengths.most:,} tokens, {mean}{by}"


def _explain_lengths(dist: str, way: str, facts: Facts) -> str:
    """Explain by which flag lengths were drawn; "" if they come from a file."""
    profile = facts.profile
    if facts.data.kind != RANDOM:
        return ""
    if profile.classes:
        return "by class"
    if dist:
        return f"by --{way}-dist {dist}"
    return f"uniform by --random-range-ratio {profile.range_ratio} (compat {profile.compat})"


def _list_server_lengths(facts: Facts, records: Records) -> Iterator[str]:
    """Yield a line on requested prompt lengths compared with the server's count."""
    planned, counted = facts.data.input, LengthFacts.measure(records.input_tokens[records.ok])
    asked = planned.mean if planned is not None else facts.profile.prefix_len + facts.profile.input_len
    if counted is None:
        yield f"prompts {asked:,.1f} tokens asked on average; the server counted none"
        return
    off = counted.mean / asked - 1
    drawn = ""
    if planned is not None and planned.least < planned.most:
        how = _explain_lengths(facts.profile.input_dist, "input", facts)
        drawn = f" ({planned.least:,} to {planned.most:,}, {how})"
    spread = f"sd {counted.sd:,.1f}, {counted.least:,} to {counted.most:,}"
    yield (
        f"prompts {asked:,.1f} tokens asked on average{drawn}, {counted.mean:,.1f} by the server's count "
        f"({100 * off:+.2f} %; {spread})"
    )


def _list_reuse(facts: Facts, records: Records) -> Iterator[str]:
    """Yield a line on the share of prompt tokens that a prefix cache should hold, and the share it held."""
    expected, by = evidence.expected_reuse(facts), evidence.reported_reuse(facts, records)
    if not expected and (facts.data.kind == RANDOM or not any(hits for hits, _ in by.values())):
        return
    if expected is not None:
        yield f"{100 * expected:.1f} % of the prompt tokens expected (cache empty at first, without a limit)"
    for source, (hits, queries) in by.items():
        yield f"{100 * hits / queries:.1f} % cached by {source} ({hits:,} of {queries:,})"
    if not by:
        yield "the server reports no cached tokens"


def _list_schedule(schedule: ScheduleFacts) -> Iterator[str]:
    """Yield lines on a trace's window, span and rate, and on how its times were changed."""
    end = "its end" if schedule.end_s is None else f"{schedule.end_s:,g} s"
    whole = schedule.end_s is None and not schedule.start_s
    part = "the whole trace" if whole else f"{schedule.start_s:,g} s to {end} of the trace"
    yield f"{schedule.format}, {part}, {schedule.requests:,} requests in {schedule.span_s:,.1f} s" + (
        f" at {schedule.speed_up:g} × its speed" if schedule.speed_up != 1 else ""
    )
    yield f"{schedule.rate_per_s:.4g} requests/s on average" if schedule.rate_per_s else "all at one time"
    if schedule.grid_s:
        spread = "spread over it" if schedule.spread else "sent as bursts"
        yield f"{schedule.instants:,} instants on a grid of {schedule.grid_s:g} s, {spread}"
    if schedule.idle_cap_s is not None:
        yield f"{schedule.idle_cut_s:,.1f} s cut out of gaps longer than {schedule.idle_cap_s:g} s"
