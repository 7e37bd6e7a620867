"""Data keys: the keys of a profile that say what its prompts are made of, and how long they are."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from loadgen.base import bounds
from loadgen.plan.data_names import Compat, DatasetName, PromptFormat, TraceFormat
from loadgen.plan.key_roles import OfLoad, OfRequest

Tokens = Annotated[int, Field(ge=1, le=bounds.MOST_TOKENS)]
Seconds = Annotated[float, Field(ge=0, le=bounds.YEAR_S)]
# The classes of keys are built as parts of Profile alone: one by one they would make each start later.
# A profile without a file: its prompts are made here.
NO_DATA = {"dataset_name": None, "dataset_path": "", "trace": "", "self_timed": False}


class DataKeys(BaseModel, frozen=True, defer_build=True):
    """What the requests are read from; the names are those of `vllm bench serve`, and its defaults."""

    dataset_name: OfLoad[DatasetName | None] = None  # None: random, or what the rows of `dataset_path` are
    dataset_path: OfLoad[str] = ""
    disable_shuffle: OfLoad[bool] = False
    no_oversample: OfLoad[bool] = False  # never send a row twice
    skip_chat_template: OfLoad[bool] = False
    # Tokens of each answer; None: those of the row.
    sharegpt_output_len: OfLoad[Tokens | None] = None
    # -1: those of the row. None: vLLM's 256 for `custom`, those of the row for a file that is recognised.
    custom_output_len: OfLoad[Annotated[int, Field(ge=-1, le=bounds.MOST_TOKENS)] | None] = None
    prefix_repetition_prefix_len: OfLoad[Tokens] = 256
    prefix_repetition_suffix_len: OfLoad[Tokens] = 256
    prefix_repetition_num_prefixes: OfLoad[Tokens] = 10
    prefix_repetition_output_len: OfLoad[Tokens] = 128
    timed_trace_label_timestamp: OfLoad[str] = "timestamp"
    timed_trace_label_input_length: OfLoad[str] = "input_length"
    timed_trace_label_output_length: OfLoad[str] = "output_length"
    timed_trace_label_hash_ids: OfLoad[str] = "hash_ids"
    timed_trace_chunk_hash_size: OfLoad[Tokens] = 16
    timed_trace_sec_multiplier: OfLoad[Annotated[float, Field(gt=0, le=bounds.MOST_SECONDS)]] = 1.0


class LengthKeys(BaseModel, frozen=True, defer_build=True):
    """How long prompts and answers that are made here are, and what their text is."""

    prompt_format: OfRequest[PromptFormat] = "auto"
    prompt_corpus: OfLoad[str] = ""  # a text file; "": the one that is shipped
    compat: OfLoad[Compat] = "vllm"  # whose meaning `range_ratio` has
    # As lognormal:mean=1024,sd=512,min=16,max=8192; "": by input_len, range_ratio.
    input_dist: OfLoad[str] = ""
    output_dist: OfLoad[str] = ""
    prefix_groups: OfLoad[Tokens] = 1  # prefixes of `prefix_len` tokens, of which each prompt begins with one
    # Exponent of the groups' popularity; 0: alike.
    prefix_zipf: OfLoad[Annotated[float, Field(ge=0, le=10)]] = 0.0


class TraceKeys(BaseModel, frozen=True, defer_build=True):
    """Which trace is sent, and what is changed of it."""

    trace: OfLoad[str] = ""  # a file, or a directory of ServeGen's
    trace_format: OfLoad[TraceFormat] = ""  # "": known by its keys
    self_timed: OfLoad[bool] = True  # at its own times; else by request_rate and max_concurrency
    trace_window: OfLoad[str] = ""  # START:END in seconds of the trace, as 600:1200; either may be left out
    speed_up: OfLoad[Annotated[float, Field(gt=0, le=1e6)]] = 1.0
    trace_max_input_len: OfLoad[Tokens | None] = None
    trace_max_output_len: OfLoad[Tokens | None] = None
    trace_too_long: OfLoad[Literal["skip", "clip"]] = "skip"
    trace_idle_cap: OfLoad[Seconds | None] = None  # longest gap without a request
    trace_jitter: OfLoad[Literal["none", "uniform"]] = "none"  # spread requests of one instant over its grid
