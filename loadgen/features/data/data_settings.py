"""Data: the settings of what prompts are made of or read from, how long they are, and of traces."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any, Literal, get_args

from loadgen.base import bounds
from loadgen.base.bounds import integer_between, number_between
from loadgen.base.text import quote_value
from loadgen.settings.setting import (
    DATA,
    LENGTHS,
    NO_KEYWORD,
    OF_A_PROFILE,
    TRACES,
    Identity,
    KeyRows,
    Makes,
    OptionRows,
    setting,
)

DatasetName = Literal["random", "sharegpt", "custom", "prefix_repetition", "timed_trace"]
# By name, the module whose `requests` reads or makes them, and whether it reads a file.
DATA_SETS: dict[str, tuple[str, bool]] = {
    "random": ("loadgen.plan.prompts.random_prompts", False),
    "sharegpt": ("loadgen.features.data.sharegpt", True),
    "custom": ("loadgen.features.data.custom", True),
    "prefix_repetition": ("loadgen.plan.prompts.vllm_texts", False),
    "timed_trace": ("loadgen.features.traces.timed_trace", True),
}
PromptFormat = Literal["auto", "ids", "text-vllm", "text-vllm-0.9", "corpus", "words"]
Compat = Literal["vllm", "vllm-0.9", "sglang", "inferencex"]
TraceFormat = Literal[
    "", "mooncake", "bailian", "azure-2023", "azure-2024", "burstgpt", "weka", "servegen", "timed"
]
_TRACES = tuple(name for name in get_args(TraceFormat) if name)
_N = {"read": integer_between(1, bounds.MOST_TOKENS), "metavar": "N"}
_LEN = {"read": int, "metavar": "N", "least": 1, "most": bounds.MOST_TOKENS}
_SWITCH = {"action": "store_true"}


def read_dataset(name: str) -> str:
    """The type of --dataset-name; raises ArgumentTypeError."""
    if name == "random-ids":  # SGLang's name of the first
        return "random"
    if name not in get_args(DatasetName):
        from loadgen.settings import other_client  # only a wrong command line needs it

        raise argparse.ArgumentTypeError(
            f"{quote_value(name)} {other_client.refuse_data_set(name, get_args(DatasetName))}"
        )
    return name


# fmt: off
_data = partial(setting, Makes.LOAD, group=DATA)
_length = partial(setting, Makes.LOAD, group=LENGTHS)
_trace = partial(setting, Makes.LOAD, group=TRACES)
_label = partial(_data, metavar="KEY")


class DataKeys(KeyRows, frozen=True):
    """What the requests are read from; the names are those of `vllm bench serve`, and its defaults."""

    # None: random, or what the rows of `dataset_path` are
    dataset_name: DatasetName | None = _data(None,
        f"random (default), {', '.join([*DATA_SETS][1:])}: vLLM's own, by its rules",
        read=read_dataset, metavar="NAME", names_server=True, compared=Identity.AS_READ)
    dataset_path: str = _data("", "without a name: prompts, whole bodies, conversations or "
        "ShareGPT, known by its keys; `loadgen data FILE` shows what it holds", metavar="FILE",
        names_server=True, compared=Identity.AS_READ, replaces=("turns", "think_time"))
    disable_shuffle: bool = _data(False, "rows in the order of the file", **_SWITCH)
    no_oversample: bool = _data(False, "never send a row twice", **_SWITCH)
    skip_chat_template: bool = _data(False,
        "send a row's prompt as it is, without the model's chat template",
        also=("--custom-skip-chat-template",), **_SWITCH)
    # None: those of the row
    sharegpt_output_len: int | None = _data(None, "output tokens, instead of the rows' own", **_N)
    # -1: those of the row. None: vLLM's 256 for `custom`, those of the row for a file that is recognised.
    custom_output_len: int | None = _data(None,
        "the same of a file of prompts; -1: the rows' own (custom: 256)",
        read=integer_between(-1, bounds.MOST_TOKENS), metavar="N")
    prefix_repetition_prefix_len: int = _data(256, "tokens of each prefix (default 256)", **_N)
    prefix_repetition_suffix_len: int = _data(256, "tokens after it (default 256)", **_N)
    prefix_repetition_num_prefixes: int = _data(10, "different prefixes (default 10)", **_N)
    prefix_repetition_output_len: int = _data(128, "output tokens (default 128)", **_N)
    timed_trace_label_timestamp: str = _label("timestamp", "of timed_trace's rows (default timestamp)")
    timed_trace_label_input_length: str = _label("input_length",
        "of timed_trace's rows (default input_length)")
    timed_trace_label_output_length: str = _label("output_length",
        "of timed_trace's rows (default output_length)")
    timed_trace_label_hash_ids: str = _label("hash_ids", "of timed_trace's rows (default hash_ids)")
    timed_trace_chunk_hash_size: int = _data(16, "tokens of a hash id (default 16)", **_N)
    timed_trace_sec_multiplier: float = _data(1.0, "seconds of one unit of its timestamps (default 1)",
        read=float, metavar="X", above=0.0, most=bounds.MOST_SECONDS)


class TextKeys(KeyRows, frozen=True):
    """What the text of prompts that are made here is, and how their lengths vary."""

    prompt_format: PromptFormat = setting(Makes.REQUEST, "auto",
        "ids: exactly N random token ids (default where the API takes them); corpus: text cut to N "
        "tokens; words: sized by the server's own count", group=LENGTHS, rank=6,
        choices=get_args(PromptFormat))
    prompt_corpus: str = _length("", "text for the format corpus (default: the one shipped)", metavar="FILE",
        rank=6, compared=Identity.AS_READ)
    compat: Compat = _length("vllm", "whose meaning of --random-range-ratio (default vllm)", rank=3,
        choices=get_args(Compat))
    # As lognormal:mean=1024,sd=512,min=16,max=8192; "": by input_len, range_ratio.
    input_dist: str = _length("", "of prompt tokens: fixed, uniform, normal, lognormal, zipf, "
        "histogram:FILE; as lognormal:mean=1024,sd=512,min=16,max=8192", metavar="DIST", rank=3)
    output_dist: str = _length("", "of output tokens", metavar="DIST", rank=3)
    # Prefixes of `prefix_len` tokens, of which each prompt begins with one.
    prefix_groups: int = _length(1, "different prefixes of that length (default 1)", rank=5, **_N)
    prefix_zipf: float = _length(0.0, "exponent of their popularity (default 0: all alike)",
        read=number_between(0, 10), metavar="S", rank=5)


class TraceKeys(KeyRows, frozen=True):
    """Which trace is sent, and what is changed of it."""

    trace: str = _trace("", "send a trace's requests at its times; of ServeGen, a directory",
        metavar="FILE", names_server=True, compared=Identity.AS_READ, replaces=("turns", "think_time"))
    trace_format: TraceFormat = _trace("", f"{', '.join(_TRACES)} (default: by its keys, where they tell)",
        choices=_TRACES, metavar="NAME", compared=Identity.AS_READ)
    self_timed: bool = _trace(True, "at its own times (default), not by rate and concurrency",
        action=argparse.BooleanOptionalAction)
    # Either end may be left out.
    trace_window: str = _trace("", "seconds of the trace, as 600:1200", metavar="START:END")
    speed_up: float = _trace(1.0, "of its times: 2 sends them in half (default 1)", read=float, metavar="X",
        above=0.0, most=1e6)
    trace_max_input_len: int | None = _trace(None, "of the requests' prompt tokens", **_N)
    trace_max_output_len: int | None = _trace(None, "of their output tokens", **_N)
    trace_too_long: Literal["skip", "clip"] = _trace("skip", "what is longer (default skip)",
        choices=("skip", "clip"))
    trace_idle_cap: float | None = _trace(None, "longest gap between requests",
        read=number_between(0, bounds.YEAR_S), metavar="S")
    trace_jitter: Literal["none", "uniform"] = _trace("none",
        "uniform: spread the requests of one instant over the timestamps' grid", choices=("none", "uniform"))


class LengthKeys(KeyRows, frozen=True):
    """How long prompts and answers are."""

    input_len: int = _length(1024, "prompt tokens (default 1024)", flag="--random-input-len", **_LEN,
        compared=Identity.AS_PLANNED)
    output_len: int = _length(128, "output tokens (default 128)", flag="--random-output-len", **_LEN,
        compared=Identity.AS_PLANNED)
    # One number, or {"input": R, "output": R} as JSON.
    range_ratio: str = _length("0.0", "vary lengths by ± R, 0 to 1", flag="--random-range-ratio",
        metavar="R", rank=2, keyword="str | float", compared=Identity.AS_SPREAD)
    prefix_len: int = _length(0, "tokens that all prompts share", flag="--random-prefix-len", rank=4,
        **_LEN | {"least": 0}, compared=Identity.AS_SPREAD)


class LengthFlags(OptionRows, frozen=True):
    """Flags that are laid over several keys: the lengths of whichever data set there is."""

    every_input_len: int | None = _length(None, "as --random-input-len", flag="--input-len", read=int,
        metavar="N", rank=1, keyword=NO_KEYWORD, campaign=OF_A_PROFILE)
    every_output_len: int | None = _length(None, "of every data set, instead of its own",
        flag="--output-len", read=int, metavar="N", rank=1,
        keyword=NO_KEYWORD, campaign=OF_A_PROFILE)
# fmt: on

# The lengths of answers that are a data set's own: --output-len is each of them.
READ_OUTPUT_LENS = ("sharegpt_output_len", "custom_output_len", "prefix_repetition_output_len")
# A profile without a file: its prompts are made here.
NO_DATA: dict[str, Any] = {"dataset_name": None, "dataset_path": "", "trace": "", "self_timed": False}
