"""Data settings: what the requests are read from."""

import argparse
from functools import partial
from typing import Annotated, Literal, get_args

import msgspec
from pydantic import BaseModel, Field

from loadgen.base import parsing
from loadgen.base.parsing import integer_between
from loadgen.base.text import quote_value
from loadgen.settings import vllm_flags
from loadgen.settings.setting import DATA, Conflict, Makes, Setting

DatasetName = Literal["random", "sharegpt", "custom", "prefix_repetition", "timed_trace", "random-mm"]
_IMAGES = (
    "pass --image-size 1024x768 and --images N, or --image-dir DIR (docs/images.md); images of a data set: "
    "write whole chat bodies with them as data URLs, one a line, and pass --dataset-path FILE"
)
# Advice for a name that other clients' --dataset-name takes.
_NEAREST = {
    "agentic-trace": "recorded conversations are sent as sessions: write a row for each message, as MLPerf's "
    "schema has it, and pass --dataset-path FILE (docs/sessions.md)",
    "bfcl": vllm_flags.TOOLS,
    "burstgpt": vllm_flags.BURSTGPT,
    "custom_audio": vllm_flags.AUDIO,
    **dict.fromkeys(("custom_image", "custom_mm", "image", "mmmu"), _IMAGES),
    "generated-shared-prefix": "--prefix-groups N with --random-prefix-len, --random-input-len and "
    "--random-output-len are N shared prefixes and their questions",
    **dict.fromkeys(("hf", "huggingface", "longbench_v2"), vllm_flags.HUB),
    "mooncake": "pass --trace FILE --trace-format mooncake, and no --dataset-name",
    "openai": "whole bodies are known by their keys: pass --dataset-path FILE without --dataset-name",
    "random-rerank": "nothing is ranked: only text generation is measured",
    "sonnet": vllm_flags.SONNET,
    **dict.fromkeys(("spec_bench", "speed_bench", "speed-bench"), vllm_flags.QUESTIONS),
}


def read_dataset(name: str) -> str:
    """Return the data set of --dataset-name, "random" for random-ids; raises ArgumentTypeError."""
    if name == "random-ids":  # SGLang's name of the first
        return "random"
    if name in _NEAREST:
        raise argparse.ArgumentTypeError(f"{quote_value(name)} is not read here: {_NEAREST[name]}")
    if name not in get_args(DatasetName):
        known = ", ".join(get_args(DatasetName))
        raise argparse.ArgumentTypeError(
            f"{quote_value(name)} is not a valid data set: choose from {known}, or leave it out and pass "
            "--dataset-path FILE (prompts, whole bodies, conversations) or --trace FILE"
        )
    return name


class RequestSource(msgspec.Struct, frozen=True):
    """A row of the sources of requests: what means it, and where its prompts, lengths and times come from."""

    key: str = ""  # of a profile, that means it where it is given; "": `dataset_name` does
    is_made: bool = False  # its prompts are made here, again for each seed and repeat
    plans_lens: bool = False  # its lengths are those of random prompts, and of no data set
    is_trace: bool = False  # its times are recorded, and its repeated prompts the file's own
    reads_file: bool = False  # `dataset_path` names its file
    from_vllm: bool = False  # a data set of `vllm bench serve`, read by its rules
    takes_output_len: bool = False  # without a setting of its own for the length of its answers


RANDOM, FILE = "random", "file"
# Sources by the kind that DataFacts have; `plan.import_source` has the module of each.
SOURCES = {
    RANDOM: RequestSource(is_made=True, plans_lens=True, takes_output_len=True),
    "trace": RequestSource(key="trace", is_made=True, is_trace=True),
    "timed_trace": RequestSource(is_trace=True, reads_file=True, from_vllm=True),
    "random_turns": RequestSource(key="turns", is_made=True, plans_lens=True),
    "prefix_repetition": RequestSource(is_made=True, from_vllm=True),
    "sharegpt": RequestSource(reads_file=True, from_vllm=True),
    "custom": RequestSource(reads_file=True, from_vllm=True),
    FILE: RequestSource(key="dataset_path", reads_file=True),
}
_NAMED = {name: row for name, row in SOURCES.items() if not (row.key or row.is_trace or row.plans_lens)}
_MADE = (None, RANDOM, *(name for name, source in _NAMED.items() if not source.reads_file))
_OURS = tuple(name for name, source in _NAMED.items() if not source.from_vllm)
_VLLMS = tuple(name for name in get_args(DatasetName)[1:] if name not in _OURS)
# Files of rows, which are shuffled and sent again where there are too few; "" is known by its rows.
_ROWS = ("", *(name for name, source in _NAMED.items() if source.reads_file))
_FILES = (*_ROWS, "trace", "timed_trace")


# fmt: off
_data = partial(Setting, Makes.LOAD, group=DATA)
_count = partial(_data, read=integer_between(1, parsing.MOST_TOKENS), metavar="N")
_label = partial(_data, metavar="KEY")


class DataKeys(BaseModel, frozen=True, defer_build=True):
    """The settings of which data set requests are read from, with the names of `vllm bench serve`."""

    # None: random, or what the rows of `dataset_path` are
    dataset_name: Annotated[DatasetName | None, _data(
        "".join((f"kind of data: random (default), {', '.join(_VLLMS)}: vLLM's own, by its rules",
            *(f"; {name}" for name in _OURS))), read=read_dataset, metavar="NAME", names_server=True,
        rules=(Conflict(
            lambda values: values["dataset_name"] not in _MADE and not values["dataset_path"],
            "--dataset-name {dataset_name} needs its file: pass --dataset-path FILE"),))] = None
    dataset_path: Annotated[str, _data("file of prompts, bodies, conversations or ShareGPT; its keys show "
        "which, unless --dataset-name says so, and `loadgen data FILE` shows what it holds", metavar="FILE",
        names_server=True, common=True)] = ""
    dataset_category: Annotated[str, _data("send only rows of this category, of Spec-Bench and SPEED-Bench",
        metavar="NAME")] = ""
    disable_shuffle: Annotated[bool, _data("send rows in the order of the file")] = False
    no_oversample: Annotated[bool, _data("never send a row twice")] = False
    skip_chat_template: Annotated[bool, _data("send a row's prompt as it is, without the model's chat "
        "template")] = False
    # None: those of the row
    sharegpt_output_len: Annotated[int | None, _count("output tokens of sharegpt, instead of the rows' "
        "own")] = None
    # -1: those of the row. None: vLLM's 256 for `custom`, those of the row for a file that is recognised.
    custom_output_len: Annotated[int | None, _data("output tokens of a file of prompts; -1: the rows' own "
        "(default: the rows' own, of custom 256)", read=integer_between(-1, parsing.MOST_TOKENS),
        metavar="N")] = None
    prefix_repetition_prefix_len: Annotated[int, _count("tokens of each prefix of prefix_repetition "
        "(default 256)")] = 256
    prefix_repetition_suffix_len: Annotated[int, _count("tokens after a prefix of prefix_repetition "
        "(default 256)")] = 256
    prefix_repetition_num_prefixes: Annotated[int, _count("number of prefixes of prefix_repetition "
        "(default 10)")] = 10
    prefix_repetition_output_len: Annotated[int, _count("output tokens of prefix_repetition (default "
        "128)")] = 128
    timed_trace_label_timestamp: Annotated[str, _label("key of the time in timed_trace's rows (default "
        "timestamp)")] = "timestamp"
    timed_trace_label_input_length: Annotated[str, _label("key of the prompt tokens in timed_trace's rows "
        "(default input_length)")] = "input_length"
    timed_trace_label_output_length: Annotated[str, _label("key of the output tokens in timed_trace's "
        "rows (default output_length)")] = "output_length"
    timed_trace_label_hash_ids: Annotated[str, _label("key of the hash ids in timed_trace's rows (default "
        "hash_ids)")] = "hash_ids"
    timed_trace_chunk_hash_size: Annotated[int, _count("tokens of a hash id of timed_trace (default "
        "16)")] = 16
    timed_trace_sec_multiplier: Annotated[float, Field(gt=0.0, le=parsing.MOST_SECONDS), _data(
        "seconds of one unit of timed_trace's times (default 1)", metavar="X")] = 1.0
# fmt: on

# The lengths of answers that are a data set's own: --output-len is each of them.
ANSWER_LENS = ("sharegpt_output_len", "custom_output_len", "prefix_repetition_output_len")
# The data sets that a setting is of, "" a file without a name; any other is of all.
DATA_SETS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("input_len", "range_ratio", "prefix_len"), (RANDOM,)),
    "dataset_path": _FILES,
    "dataset_category": ("",),
    "disable_shuffle": ("", *_NAMED),
    "no_oversample": _ROWS,
    "skip_chat_template": _ROWS,
    "sharegpt_output_len": ("sharegpt",),
    "custom_output_len": ("custom", ""),
    **{
        name: (kind,)
        for kind in ("prefix_repetition", "timed_trace")
        for name in DataKeys.model_fields
        if name.startswith(kind)
    },
}
