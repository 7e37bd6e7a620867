"""Load identity: one value of the load that a run was under, which answers whether two runs had the same.

Rows of tables, reported runs and comparisons have it. Which settings make a load, and how they are compared,
is in their rows of the table of settings.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import asdict

from loadgen.base.text import format_count
from loadgen.facts.run_facts import Facts
from loadgen.report.run_directory import Result
from loadgen.settings.data_settings import ANSWER_LENS, DATA_SETS, RANDOM
from loadgen.settings.load_settings import RequestClass
from loadgen.settings.setting import Makes, list_rows
from loadgen.settings.table import PROFILE_KEYS

_DIGEST = 12  # characters of one that are shown
# Settings of a load that are not compared by their value are compared like this.
_OTHERWISE = {
    **dict.fromkeys(("dataset_name", "dataset_path", "prompt_corpus"), "what was read"),
    **dict.fromkeys(("trace", "trace_format"), "what was read"),
    **dict.fromkeys(("input_len", "output_len", "num_prompts", "duration"), "what was planned"),
    **dict.fromkeys(("max_concurrency", "request_rate"), "what was planned"),
    **dict.fromkeys(("range_ratio", "prefix_len", "burstiness"), "the spread"),
}
_AS_GIVEN = {
    row.name: row.default
    for row in list_rows(*PROFILE_KEYS)
    if row.makes is Makes.LOAD and row.name not in _OTHERWISE
}
_NAMED = {data_set for name in _AS_GIVEN for data_set in DATA_SETS.get(name, ())}
_COLUMNS = ("num_sessions", "users")  # that tables have anyway, as requests and concurrency
_SPREAD = "spread"  # of the settings that vary lengths and arrivals
_EVEN = ("0.0", "0")  # range ratios that vary nothing
_NO_LIMIT, _BY_COUNT = "no limit", "until the last request"
_DRAWN = "as drawn"  # of a file or a distribution, which `shape` names
Lengths = tuple[float | None, float | None]  # tokens in and out


class Load(msgspec.Struct, frozen=True):
    """The load that a run was requested to make; a field is None where it is unknown."""

    name: str = ""  # high-load, low, "input 6144"
    requests: int | None = None  # asked for
    input_len: float | None = None  # tokens of a prompt, mean, as counted
    output_len: float | None = None  # tokens of an answer, mean, as counted
    asked_output_len: int | None = None
    max_concurrency: int | None = None
    request_rate_per_s: float | None = None  # inf: as soon as the concurrency allows
    asked_input_len: int | None = None
    seed: int | None = None  # of the prompts, if known
    duration_s: float | None = None  # sent for a time; `requests` is then at most
    shape: str = ""  # the data, how lengths and arrivals vary, what prompts share; "": all alike, or unknown
    timed: bool = False  # at the times of a trace, of which `request_rate_per_s` is then the mean
    # A run of ours has these: how lengths and arrivals vary, and what else makes the load and is unusual.
    settings: tuple[tuple[str, Any], ...] | None = None

    @property
    def lengths(self) -> Lengths:
        """Mean tokens of a prompt and of an answer: as requested if that is known, else as counted."""
        asked = self.asked_input_len, self.asked_output_len
        return (
            self.input_len if asked[0] is None else asked[0],
            self.output_len if asked[1] is None else asked[1],
        )

    @property
    def length_words(self) -> str:
        """The lengths as `2048 / 128`; "" if neither is known."""
        known = [format_tokens(length) for length in self.lengths]
        return " / ".join(known) if any(known) else ""

    @property
    def duration_words(self) -> str:
        """How long requests were sent, as `20 s`; "" if their number was given instead."""
        return "" if self.duration_s is None else f"{self.duration_s:g} s"

    @property
    def count_words(self) -> str:
        """The requested number of requests; "" if they were sent for a time."""
        return "" if self.requests is None or self.duration_s is not None else str(self.requests)

    @property
    def pressure(self) -> tuple[float, float]:
        """The limits (requests in flight, requests per second), infinite where there is none."""
        limit, rate = self.max_concurrency, self.request_rate_per_s
        return (math.inf if limit is None else float(limit), math.inf if rate is None else float(rate))

    @property
    def pressure_words(self) -> str:
        """The limits of the load in words: 8 at a time, 2.5 requests/s, all at once."""
        limit, rate = self.max_concurrency, self.request_rate_per_s
        parts = [f"{limit} at a time"] if limit is not None else []
        parts += [f"{rate:g} requests/s"] if rate is not None and math.isfinite(rate) else []
        return ", ".join(parts) or "all at once"

    @property
    def words(self) -> dict[str, str]:
        """What is known of lengths, requests or duration, and shape, in words, by the title of a table."""
        tokens_in, tokens_out = (format_tokens(length) or "?" for length in self.lengths)
        known = {
            "in / out": f"{tokens_in} in / {tokens_out} out" if self.length_words else "",
            "requests": format_count(int(self.count_words), "request") if self.count_words else "",
            "duration": f"for {self.duration_words}" if self.duration_words else "",
            "spread": self.shape,
        }
        return {title: text for title, text in known.items() if text}

    @property
    def is_drawn(self) -> bool:
        """Whether this is a run of ours with a `shape`, whose mean lengths may differ from run to run."""
        return self.settings is not None and bool(self.shape)

    @property
    def spread(self) -> str:
        """How lengths and arrivals vary and what prompts share, in words; "" if unknown."""
        return str(dict(self.settings or ()).get(_SPREAD, ""))

    @property
    def unusual(self) -> dict[str, Any] | None:
        """The settings of the load that differ from the defaults, by name; None for another client's run."""
        if self.settings is None:
            return None
        return {name: value for name, value in self.settings if name != _SPREAD}

    @property
    def series(self) -> tuple[str, str, str]:
        """The key that loads share which differ in concurrency or rate alone: name, lengths, shape."""
        return self.name, self.length_words, self.shape

    @property
    def identity(self) -> tuple[Any, ...]:
        """The key that two of our runs share exactly if they were under the same load."""
        return (self.name, *self.list_facts().values())

    def list_facts(self, limited: bool = False, shaped: bool = False) -> dict[str, Any]:
        """List the values that must be equal for two loads to be the same, by name; None: unknown.

        Of another client's run, `limited`: no concurrency is no limit; `shaped`: no shape is a constant load.
        """
        ours = self.settings is not None
        drawn = _DRAWN if self.is_drawn else None
        unlimited = _NO_LIMIT if ours or limited else None
        unending = _BY_COUNT if ours else None
        return {
            "requests": self.requests if self.duration_s is None else None,  # a faster server gets more
            "input": drawn if self.asked_input_len is None else self.asked_input_len,
            "output": drawn if self.asked_output_len is None else self.asked_output_len,
            "concurrency": unlimited if self.max_concurrency is None else self.max_concurrency,
            "rate": None if self.timed else self.request_rate_per_s,
            "duration": unending if self.duration_s is None else self.duration_s,
            "shape": self.shape if ours or shaped else None,
            "made of": None if self.unusual is None else tuple(self.unusual.items()),
        }

    def json(self) -> dict[str, Any]:
        """Encode the load for JSON; a run's settings are left to its facts."""
        return {name: value for name, value in asdict(self).items() if name != "settings"}


def identify_load(facts: Facts, input_len: float | None, output_len: float | None) -> Load:
    """Make the Load of one of our runs; lengths are mean tokens, as counted or planned."""
    profile, (asked_input, asked_output) = facts.profile, find_asked_lengths(facts)
    spread = f"range {profile.range_ratio}, prefix {profile.prefix_len}, burstiness {profile.burstiness:g}"
    return Load(
        name=profile.name,
        requests=facts.own_requests,
        input_len=input_len,
        output_len=output_len,
        asked_output_len=asked_output,
        max_concurrency=facts.max_concurrency,
        request_rate_per_s=facts.planned_rate_per_s,
        asked_input_len=asked_input,
        seed=facts.seed,
        duration_s=profile.duration,
        shape=_describe_shape(facts),
        timed=facts.data.schedule is not None,
        settings=((_SPREAD, spread), *_list_unusual(facts)),
    )


def identify_measured_load(run: Result) -> Load:
    """Make the Load of a run, with the mean lengths as planned, else of the tokens counted."""
    data, metrics = run.facts.data, run.metrics
    counted = metrics.total_input_tokens, metrics.total_output_tokens
    means = (
        lengths.mean if lengths is not None else total / metrics.completed if metrics.completed else None
        for lengths, total in zip((data.input, data.output), counted, strict=True)
    )
    return identify_load(run.facts, *means)


def _list_unusual(facts: Facts) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of the load's settings that are not the default, its data with their digest first.

    Not in it: lengths, counts, concurrency, rate and duration, which a run has as planned, and the spread.
    """
    data, profile = facts.data, facts.profile
    if data.kind != RANDOM:
        form = data.schedule.format if data.schedule is not None else ""
        yield "data", " ".join(filter(None, (data.kind, form, shorten_digest(facts))))
    if data.text and data.kind == RANDOM:
        yield "text", shorten_digest(facts) or data.text  # of one's own file the digest, not the name
    alike = profile.range_ratio in _EVEN or data.kind != RANDOM
    for name, default in _AS_GIVEN.items():
        value = getattr(profile, name)
        if name in ANSWER_LENS and data.kind in _NAMED and data.kind not in DATA_SETS[name]:
            continue  # --output-len gives it to every data set
        if value != default and not (name == "compat" and alike):
            yield name, describe_classes(value) if name == "classes" else value


def _describe_shape(facts: Facts) -> str:
    """Describe unusual data, lengths, arrivals and shared prefixes in words; "" if all are default.

    What a table has a column for is left out, so that the loads of a sweep have the same words.
    """
    profile = facts.profile
    parts = [
        value
        if name in ("data", "text")
        else f"{name.replace('_', '-')} {format(value, 'g') if isinstance(value, float) else value}"
        for name, value in _list_unusual(facts)
        if name not in _COLUMNS
    ]
    if has_range(facts):
        parts.append(f"range ratio {profile.range_ratio}")
    if profile.prefix_len:
        parts.append(f"{profile.prefix_len} tokens shared")
    if profile.burstiness != 1.0:
        parts.append(f"burstiness {profile.burstiness:g}")
    return ", ".join(parts)


def has_range(facts: Facts) -> bool:
    """Whether lengths would vary by --random-range-ratio, of any data."""
    return facts.profile.range_ratio not in _EVEN


def shorten_digest(facts: Facts) -> str:
    """Return the first characters of the data file's digest; "" without a file."""
    return facts.data.file_digest[:_DIGEST]


def describe_classes(classes: Sequence[RequestClass]) -> str:
    """Describe classes of requests by share and mean lengths, as `long 30 % 8000/200`."""
    return ", ".join(f"{kind.name} {kind.share:g} % {kind.input_len}/{kind.output_len}" for kind in classes)


def format_tokens(length: float | None) -> str:
    """Format a mean number of tokens, with a decimal if it is not whole; "" if unknown."""
    if length is None:
        return ""
    return f"{length:.0f}" if length == round(length) else f"{length:.1f}"


def find_asked_lengths(facts: Facts) -> tuple[int | None, int | None]:
    """Return the requested tokens of a prompt, a range aside, and of an answer; None if drawn or unequal."""
    data, profile = facts.data, facts.profile
    asked: list[int | None] = []
    for given, dist, lengths in (
        (profile.input_len, profile.input_dist, data.input),
        (profile.output_len, profile.output_dist, data.output),
    ):
        if data.kind == RANDOM and not (dist or profile.classes):
            asked.append(given)
            continue
        whole = lengths is not None and lengths.known >= facts.requests and lengths.least == lengths.most
        asked.append(lengths.most if lengths is not None and whole else None)
    return asked[0], asked[1]
