"""Data keys: the keys of a profile that say what its prompts are made of, and how long they are."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from loadgen.workload import bounds
from loadgen.workload.data_names import Compat, DatasetName, PromptFormat, TraceFormat

Tokens = Annotated[int, Field(ge=1, le=bounds.MOST_TOKENS)]
Seconds = Annotated[float, Field(ge=0, le=bounds.YEAR_S)]
# The classes of keys are built as parts of Profile alone: one by one they would make each start later.
# A profile without a file: its prompts are made here.
NO_DATA = {"dataset_name": None, "dataset_path": "", "trace": "", "self_timed": False}


class DataKeys(BaseModel, frozen=True, defer_build=True):
    """What the requests are read from; the names are those of `vllm bench serve`, and its defaults."""

    dataset_name: DatasetName | None = None  # None: random, or what the rows of `dataset_path` are
    dataset_path: str = ""
    disable_shuffle: bool = False
    no_oversample: bool = False  # never send a row twice
    skip_chat_template: bool = False
    # Tokens of each answer; None: those of the row.
    sharegpt_output_len: Tokens | None = None
    # -1: those of the row. None: vLLM's 256 for `custom`, those of the row for a file that is recognised.
    custom_output_len: Annotated[int, Field(ge=-1, le=bounds.MOST_TOKENS)] | None = None
    prefix_repetition_prefix_len: Tokens = 256
    prefix_repetition_suffix_len: Tokens = 256
    prefix_repetition_num_prefixes: Tokens = 10
    prefix_repetition_output_len: Tokens = 128
    timed_trace_label_timestamp: str = "timestamp"
    timed_trace_label_input_length: str = "input_length"
    timed_trace_label_output_length: str = "output_length"
    timed_trace_label_hash_ids: str = "hash_ids"
    timed_trace_chunk_hash_size: Tokens = 16
    timed_trace_sec_multiplier: Annotated[float, Field(gt=0, le=bounds.MOST_SECONDS)] = 1.0


class LengthKeys(BaseModel, frozen=True, defer_build=True):
    """How long prompts and answers that are made here are, and what their text is."""

    prompt_format: PromptFormat = "auto"
    prompt_corpus: str = ""  # a text file; "": the one that is shipped
    compat: Compat = "vllm"  # whose meaning `range_ratio` has
    input_dist: str = ""  # as lognormal:mean=1024,sd=512,min=16,max=8192; "": by input_len, range_ratio
    output_dist: str = ""
    prefix_groups: Tokens = 1  # prefixes of `prefix_len` tokens, of which each prompt begins with one
    prefix_zipf: Annotated[float, Field(ge=0, le=10)] = 0.0  # exponent of the groups' popularity; 0: alike


class TraceKeys(BaseModel, frozen=True, defer_build=True):
    """Which trace is sent, and what is changed of it."""

    trace: str = ""  # a file, or a directory of ServeGen's
    trace_format: TraceFormat = ""  # "": known by its keys
    self_timed: bool = True  # at its own times; else by request_rate and max_concurrency
    trace_window: str = ""  # START:END in seconds of the trace, as 600:1200; either may be left out
    speed_up: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    trace_max_input_len: Tokens | None = None
    trace_max_output_len: Tokens | None = None
    trace_too_long: Literal["skip", "clip"] = "skip"
    trace_idle_cap: Seconds | None = None  # longest gap without a request
    trace_jitter: Literal["none", "uniform"] = "none"  # spread requests of one instant over its grid
