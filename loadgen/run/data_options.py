"""Data flags: what the requests are made of or read from, how long they are, and which trace times them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, get_args

from loadgen.base import bounds
from loadgen.base.bounds import real, whole
from loadgen.plan.data_names import READ_OUTPUT_LENS, Compat, PromptFormat, TraceFormat
from loadgen.run.load_options import add_load_flags
from loadgen.run.other_options import dataset
from loadgen.run.session_options import add_session_flags

_NAMING_DATA = {"dataset_name", "dataset_path", "profile"}
_YES_NO = argparse.BooleanOptionalAction
_TOKENS = whole(1, bounds.MOST_TOKENS)


def laid_over(values: dict[str, Any]) -> None:
    """Lay --input-len and --output-len over each data set's own, as vLLM 0.32 does, in the flags' values."""
    if (tokens := values.pop("every_input_len", None)) is not None:
        values["input_len"] = tokens
    if (tokens := values.pop("every_output_len", None)) is not None:
        values["output_len"] = tokens
        if _NAMING_DATA & {*values, *_varied(values)}:
            values.update(dict.fromkeys(READ_OUTPUT_LENS, tokens))


def _varied(values: Mapping[str, Any]) -> Iterator[str]:
    """The keys of a profile that a sweep's flags vary, as they name them."""
    for text in (*values.get("vary", ()), *chain.from_iterable(values.get("link", ()))):
        yield text.partition("=")[0].strip().replace("-", "_")


def add_data_flags(parser: argparse._ActionsContainer) -> None:
    """Add the keys of LoadKeys, SessionKeys, DataKeys, LengthKeys and TraceKeys as flags, in five groups."""
    add_load_flags(parser.add_argument_group("load over time, and classes (docs/load-shapes.md)"))
    add_session_flags(parser.add_argument_group("sessions of several turns (docs/sessions.md)"))
    _data_flags(parser.add_argument_group("data (docs/datasets.md)"))
    _length_flags(parser.add_argument_group("lengths and text of random prompts"))
    _trace_flags(parser.add_argument_group("traces (docs/traces.md)"))


# fmt: off
def _data_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--dataset-name", type=dataset, metavar="NAME",
        help="random (default), sharegpt, custom, prefix_repetition, timed_trace: vLLM's own, by its rules")
    add("--dataset-path", metavar="FILE", help="without a name: prompts, whole bodies, conversations or "
        "ShareGPT, known by its keys; `loadgen data FILE` shows what it holds")
    add("--disable-shuffle", action="store_true", help="rows in the order of the file")
    add("--no-oversample", action="store_true", help="never send a row twice")
    add("--skip-chat-template", "--custom-skip-chat-template", action="store_true",
        help="send a row's prompt as it is, without the model's chat template")
    add("--sharegpt-output-len", type=_TOKENS, metavar="N", help="output tokens, instead of the rows' own")
    add("--custom-output-len", type=whole(-1, bounds.MOST_TOKENS), metavar="N",
        help="the same of a file of prompts; -1: the rows' own (custom: 256)")
    for name, default, what in (
        ("prefix-len", 256, "tokens of each prefix"), ("suffix-len", 256, "tokens after it"),
        ("num-prefixes", 10, "different prefixes"), ("output-len", 128, "output tokens"),
    ):
        add(f"--prefix-repetition-{name}", type=_TOKENS, metavar="N", help=f"{what} (default {default})")
    for name in ("timestamp", "input-length", "output-length", "hash-ids"):
        add(f"--timed-trace-label-{name}", metavar="KEY",
            help=f"of timed_trace's rows (default {name.replace('-', '_')})")
    add("--timed-trace-chunk-hash-size", type=_TOKENS, metavar="N", help="tokens of a hash id (default 16)")
    add("--timed-trace-sec-multiplier", type=float, metavar="X",
        help="seconds of one unit of its timestamps (default 1)")


def _length_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--random-input-len", dest="input_len", type=int, metavar="N", help="prompt tokens (default 1024)")
    add("--random-output-len", dest="output_len", type=int, metavar="N", help="output tokens (default 128)")
    add("--input-len", dest="every_input_len", type=int, metavar="N", help="as --random-input-len")
    add("--output-len", dest="every_output_len", type=int, metavar="N",
        help="of every data set, instead of its own")
    add("--random-range-ratio", dest="range_ratio", metavar="R", help="vary lengths by ± R, 0 to 1")
    add("--compat", choices=get_args(Compat), help="whose meaning of --random-range-ratio (default vllm)")
    add("--input-dist", metavar="DIST", help="of prompt tokens: fixed, uniform, normal, lognormal, zipf, "
        "histogram:FILE; as lognormal:mean=1024,sd=512,min=16,max=8192")
    add("--output-dist", metavar="DIST", help="of output tokens")
    add("--random-prefix-len", dest="prefix_len", type=int, metavar="N", help="tokens that all prompts share")
    add("--prefix-groups", type=_TOKENS, metavar="N", help="different prefixes of that length (default 1)")
    add("--prefix-zipf", type=real(0, 10), metavar="S",
        help="exponent of their popularity (default 0: all alike)")
    add("--prompt-format", choices=get_args(PromptFormat),
        help="ids: exactly N random token ids (default where the API takes them); corpus: text cut to N "
        "tokens; words: sized by the server's own count")
    add("--prompt-corpus", metavar="FILE", help="text for the format corpus (default: the one shipped)")


def _trace_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--trace", metavar="FILE", help="send a trace's requests at its times; of ServeGen, a directory")
    formats = [name for name in get_args(TraceFormat) if name]
    add("--trace-format", choices=formats, metavar="NAME",
        help=f"{', '.join(formats)} (default: by its keys, where they tell)")
    add("--self-timed", action=_YES_NO, help="at its own times (default), not by rate and concurrency")
    add("--trace-window", metavar="START:END", help="seconds of the trace, as 600:1200")
    add("--speed-up", type=float, metavar="X", help="of its times: 2 sends them in half (default 1)")
    add("--trace-max-input-len", type=_TOKENS, metavar="N", help="of the requests' prompt tokens")
    add("--trace-max-output-len", type=_TOKENS, metavar="N", help="of their output tokens")
    add("--trace-too-long", choices=("skip", "clip"), help="what is longer (default skip)")
    add("--trace-idle-cap", type=real(0, bounds.YEAR_S), metavar="S", help="longest gap between requests")
    add("--trace-jitter", choices=("none", "uniform"),
        help="uniform: spread the requests of one instant over the timestamps' grid")
# fmt: on
