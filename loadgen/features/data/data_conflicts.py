"""Conflicts: keys of a profile that ask for two kinds of requests at once, refused by both names."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from loadgen.base.errors import UsageError
from loadgen.features.data.data_settings import DataKeys
from loadgen.features.traces.trace_settings import TraceKeys
from loadgen.settings.cancel_point import parse_point
from loadgen.settings.prompt_settings import TextKeys
from loadgen.settings.table import ANSWER_LENS, join_rows
from loadgen.settings.validation import find_flag

Values = Mapping[str, Any]
_MADE = (None, "random")
_NAMED_FILES = ("sharegpt", "custom", "timed_trace")
_NO_RANGE = ("0.0", "0", "")
# Keys that only say how random prompts are made; vLLM takes its own of them with any data set.
_VLLM_LENGTHS = ("input_len", "range_ratio", "prefix_len")
_TEXT = ("prompt_format", "prompt_corpus")
_OF_TRACES = tuple(sorted(row.name for row in TraceKeys.rows if row.name != "trace"))
_DEFAULTS = {row.name: row.default for row in join_rows(TextKeys, TraceKeys)}
_DATA_SETS_OWN = {
    "sharegpt_output_len": ("sharegpt",),
    "custom_output_len": ("custom", ""),
    **{
        row.name: (kind,)
        for row in DataKeys.rows
        for kind in ("prefix_repetition", "timed_trace")
        if row.name.startswith(f"{kind}_")
    },
    **dict.fromkeys(("disable_shuffle", "no_oversample", "skip_chat_template"), ("sharegpt", "custom", "")),
}


def check(values: Values, typed: Collection[str] = ()) -> None:
    """Raises UsageError of the first pair of keys that do not go together, or a key without what it is of.

    `values` are a profile's, by key; `typed` are those given as flags or keywords.
    """
    for rule in _RULES:
        for message in rule(values, typed):
            raise UsageError(message)


def unheeded(values: Values, typed: Collection[str]) -> list[str]:
    """The flags of vLLM that were typed and are of another data set, which vLLM takes without a word."""
    kind, _ = _data(values)
    every = ANSWER_LENS if set(ANSWER_LENS) <= set(typed) else ()  # --output-len
    own = [key for key, kinds in _DATA_SETS_OWN.items() if key in typed and kind not in kinds]
    own = [key for key in own if key not in every]
    own += [key for key in _VLLM_LENGTHS if key in typed and kind != "random"]
    if values.get("dataset_path") and values.get("dataset_name") in ("random", "prefix_repetition"):
        own.append("dataset_path")
    return [find_flag(key) for key in own]


def _data(values: Values) -> tuple[str, str]:
    """The data set, "" for a file that is recognised, and the flag that names it."""
    name, path = values.get("dataset_name"), values.get("dataset_path")
    if values.get("trace"):
        return "trace", "--trace"
    if name not in _MADE:
        return str(name), f"--dataset-name {name}"
    return ("", "--dataset-path") if path and name is None else ("random", "--dataset-name random")


def _timed(values: Values) -> bool:
    return _data(values)[0] in ("trace", "timed_trace") and values.get("self_timed") is not False


def _given(values: Values, typed: Collection[str], keys: Collection[str]) -> Iterator[str]:
    """Those of the keys that were typed, or are not at their default in a file."""
    for key in keys:
        if key in typed or values.get(key) != _DEFAULTS[key]:
            yield key


def _two_sources(values: Values, _: Collection[str]) -> Iterator[str]:
    if values.get("trace"):
        for key in ("dataset_path", "dataset_name"):
            if values.get(key) not in (None, ""):
                yield f"--trace and {find_flag(key)} are two sources of requests: leave out one of them"


def _no_file(values: Values, _: Collection[str]) -> Iterator[str]:
    name = values.get("dataset_name")
    if name in _NAMED_FILES and not values.get("dataset_path"):
        yield f"--dataset-name {name} needs its file: pass --dataset-path FILE"


def _two_schedules(values: Values, _: Collection[str]) -> Iterator[str]:
    rate = values.get("request_rate")
    if _timed(values) and rate is not None and math.isfinite(rate):
        yield (
            f"--request-rate {rate:g} and {_data(values)[1]} are two schedules: pass --speed-up X to change "
            "the trace's rate, or --no-self-timed to send its requests at --request-rate"
        )


def _ladder(values: Values, _: Collection[str]) -> Iterator[str]:
    kind, flag = _data(values)
    if values.get("ladder") and kind != "random":
        yield f"{flag} does not apply to a ladder: its prompts are random, of the lengths of its profile"


def _two_lengths(values: Values, _: Collection[str]) -> Iterator[str]:
    ratio = str(values.get("range_ratio", ""))
    for key in ("input_dist", "output_dist"):
        if values.get(key) and ratio not in _NO_RANGE:
            yield (
                f"{find_flag(key)} and --random-range-ratio {ratio} both vary the lengths: leave one out "
                "(a profile's by --random-range-ratio 0)"
            )


def _made_and_read(values: Values, typed: Collection[str]) -> Iterator[str]:
    kind, flag = _data(values)
    if kind == "random":
        return
    made = {*_DEFAULTS} - {*_OF_TRACES, "trace", *_VLLM_LENGTHS, *(_TEXT if kind == "trace" else ())}
    for key in _given(values, typed, sorted(made)):
        flags = f"{find_flag(key)} is of random prompts, and {flag}"
        yield f"{flags} has prompts of its own: leave out one of them"


def _no_trace(values: Values, typed: Collection[str]) -> Iterator[str]:
    if _data(values)[0] not in ("trace", "timed_trace"):
        for key in _given(values, typed, _OF_TRACES):
            flag = find_flag(key)
            if key == "self_timed":
                flag = "--self-timed" if values.get(key) else "--no-self-timed"
            yield f"{flag} applies to a trace: pass --trace FILE, or leave it out"


def _no_prefix(values: Values, typed: Collection[str]) -> Iterator[str]:
    if not values.get("prefix_len"):
        for key in _given(values, typed, ("prefix_groups", "prefix_zipf")):
            if values[key] != _DEFAULTS[key]:
                yield f"{find_flag(key)} needs prefixes: pass --random-prefix-len N"


def _cancelled(values: Values, _: Collection[str]) -> Iterator[str]:
    rate, after = (values.get(key) for key in ("cancel_rate", "cancel_after"))
    if bool(rate) != bool(after):
        given, missing = ("rate", "after 2s") if rate else ("after", "rate 10%")
        yield f"--cancel-{given} needs --cancel-{missing} or the like: how many are cancelled, and when"
    if rate and after and parse_point(after).after_tokens and values.get("stream") is False:
        yield f"--cancel-after {after}: a whole answer has no tokens to count: give a time instead"


def _capped(values: Values, _: Collection[str]) -> Iterator[str]:
    if values.get("prefill_concurrency") is not None and values.get("stream") is False:
        yield "--prefill-concurrency: a whole answer shows no first token: leave out --disable-stream"


_RULES: tuple[Callable[[Values, Collection[str]], Iterator[str]], ...] = (
    *(_cancelled, _capped),
    *(_two_sources, _no_file, _two_schedules, _ladder, _two_lengths, _made_and_read, _no_trace, _no_prefix),
)
