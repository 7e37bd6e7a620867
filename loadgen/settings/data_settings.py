"""Data settings: what requests are made of, as random text, a data set or a trace, and what goes together."""

import argparse
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Annotated, Literal, get_args

import msgspec
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from loadgen.base import parsing
from loadgen.base.errors import UsageError
from loadgen.base.parsing import integer_between, number_between, refuse_blank
from loadgen.base.text import quote_value
from loadgen.settings import vllm_flags
from loadgen.settings.setting import (
    DATA,
    IMAGES,
    LENGTHS,
    TRACES,
    Conflict,
    Given,
    Makes,
    Requirement,
    Setting,
    SettingRow,
    Values,
    convert_number,
    make_check,
)

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
_TRACES = tuple(name for name, source in SOURCES.items() if source.is_trace)
_FILES = (*_ROWS, *_TRACES)


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


def check_conflicts(rows: Iterable[SettingRow], values: Values, typed: Collection[str] = ()) -> None:
    """Raise UsageError for the first of `rows` that lacks a setting it needs, or contradicts another.

    `values` are a profile's, by key; `typed` are the keys that were given as flags or keywords.
    """
    by_name = {row.name: row for row in rows}
    for row in by_name.values():
        is_set, is_typed = values[row.name] != row.default, row.name in typed
        given = {Given.SET: is_set, Given.TYPED: is_typed, Given.WRITTEN: is_set or is_typed}
        for rule in row.rules:
            if not given[rule.given]:
                continue
            if callable(rule.other):
                found = rule.other(values)
            else:
                found = values[rule.other] != by_name[rule.other].default
            if bool(found) is not isinstance(rule, Requirement):
                other = "" if callable(rule.other) else by_name[rule.other].option
                flag = row.option
                if row.default is True and not values[row.name]:
                    flag = f"--no-{flag[2:]}"
                words = {"flag": flag, "other": other, "found": found, "data": find_data(values)[1]}
                raise UsageError(rule.message.format_map({**values, **words}))


def list_unheeded(rows: Sequence[SettingRow], values: Values, typed: Collection[str]) -> list[str]:
    """List the typed flags of other data sets than the one in use, which have no effect, as in vLLM.

    Of answers' lengths that are all typed, as by --output-len, only that is listed. --dataset-path counts as
    typed if the profile gives it.
    """
    kind, _ = find_data(values)
    every = set(ANSWER_LENS) if set(ANSWER_LENS) <= set(typed) else set()  # --output-len
    given = {*typed, "dataset_path"} if values["dataset_path"] else {*typed} - {"dataset_path"}
    lengthened = {name for name, source in SOURCES.items() if source.takes_output_len}
    lengthened = lengthened.union(*(DATA_SETS[name] for name in ANSWER_LENS))
    unheeded = ["--output-len"] if "output_len" in given and kind not in lengthened else []
    return unheeded + [
        row.option
        for row in rows
        if row.name in DATA_SETS
        and row.name in given
        and kind not in DATA_SETS[row.name]
        and row.name not in every
    ]


def find_data(values: Values) -> tuple[str, str]:
    """Return the data set's name and flag: --trace's, else --dataset-name's, else --dataset-path's, named "".

    ("random", "") if none of them is given, or the name is `random`.
    """
    name = values["dataset_name"]
    if values["trace"]:
        return "trace", "--trace"
    if name not in (None, RANDOM):
        return str(name), f"--dataset-name {name}"
    return ("", "--dataset-path") if values["dataset_path"] and name is None else ("random", "")


def reads_data(values: Values) -> bool:
    """Whether the requests come from a data set rather than random prompts."""
    return find_data(values)[0] != "random"


def replays_trace(values: Values) -> bool:
    """Whether the requests come from a trace."""
    return find_data(values)[0] in _TRACES


def is_timed(values: Values) -> bool:
    """Whether requests are sent at the times of a trace."""
    own = values["self_timed"] is not False and values["trace_replay"] != "closed"
    return replays_trace(values) and own


def is_stepped(values: Values) -> bool:
    """Whether the schedule's stages are concurrency levels rather than rates."""
    return str(values.get("schedule") or "").strip().startswith("concurrency")


PromptFormat = Literal["auto", "ids", "text-vllm", "text-vllm-0.9", "corpus", "words"]
Compat = Literal["vllm", "vllm-0.9", "sglang", "inferencex"]
_NO_RANGE = ("0.0", "0", "")


OF_ITS_OWN = "{flag} is of random prompts, and {data} has prompts of its own: leave out one of them"
_OWN_PROMPTS = Conflict(reads_data, OF_ITS_OWN, Given.WRITTEN)
# A trace has the form of its prompts to choose.
_TEXTS = Conflict(lambda values: find_data(values)[0] not in ("random", "trace"), OF_ITS_OWN, Given.WRITTEN)
_RANGE = Conflict(
    lambda values: values["range_ratio"] not in _NO_RANGE,
    "{flag} and --random-range-ratio {range_ratio} both vary the lengths: leave one "
    "out (a profile's by --random-range-ratio 0)",
)
_PREFIX = Requirement(
    lambda values: values["prefix_len"] > 0 or reads_data(values),
    "{flag} needs prefixes: pass --random-prefix-len N",
)
_IN_CLASSES = "{flag} and --class both give lengths: write them into each class, as input_len=500"
_CLASSES = Conflict("classes", _IN_CLASSES, Given.TYPED)

# fmt: off
_made = partial(Setting, Makes.LOAD, group=LENGTHS, rules=(_OWN_PROMPTS,))
_dist = partial(Setting, Makes.LOAD, group=LENGTHS, metavar="DIST", rank=3,
    rules=(_RANGE, _OWN_PROMPTS, Conflict("classes", _IN_CLASSES, Given.WRITTEN)))
_length = partial(Setting, Makes.LOAD, group=LENGTHS)


class TextKeys(BaseModel, frozen=True, defer_build=True):
    """The settings of the text of generated prompts."""

    prompt_format: Annotated[PromptFormat, Setting(Makes.REQUEST, "form of random prompts. ids: exactly N "
        "random token ids (default where the API takes them); corpus: text cut to N tokens; words: sized "
        "by the server's own count", group=LENGTHS, rank=6, rules=(_TEXTS,))] = "auto"
    prompt_corpus: Annotated[str, Setting(Makes.LOAD, "text of --prompt-format corpus (default: the one "
        "that is shipped)", group=LENGTHS, metavar="FILE", rank=6, rules=(_TEXTS,))] = ""


class VariationKeys(BaseModel, frozen=True, defer_build=True):
    """The settings of how the lengths of generated prompts vary, and of the prefixes that prompts share."""

    compat: Annotated[Compat, _made("client whose meaning --random-range-ratio has (default vllm)",
        rank=3)] = "vllm"
    # As lognormal:mean=1024,sd=512,min=16,max=8192; "": by input_len, range_ratio.
    input_dist: Annotated[str, _dist("distribution of prompt tokens: fixed, uniform, normal, lognormal, "
        "zipf, histogram:FILE; as lognormal:mean=1024,sd=512,min=16,max=8192")] = ""
    output_dist: Annotated[str, _dist("distribution of output tokens, as of --input-dist")] = ""
    # Prefixes of `prefix_len` tokens, of which each prompt begins with one.
    prefix_groups: Annotated[int, _made("number of different prefixes, of --random-prefix-len each "
        "(default 1)", rank=5, read=integer_between(1, parsing.MOST_TOKENS), metavar="N",
        rules=(_PREFIX, _OWN_PROMPTS))] = 1
    prefix_zipf: Annotated[float, _made("Zipf exponent of the prefixes' popularity (default 0: all alike)",
        read=number_between(0, 10), metavar="S", rank=5, rules=(_PREFIX, _OWN_PROMPTS))] = 0.0


class LengthKeys(BaseModel, frozen=True, defer_build=True):
    """The settings of how long prompts and answers are."""

    input_len: Annotated[int, Field(ge=1, le=parsing.MOST_TOKENS), _length("prompt tokens (default 1024)",
        flag="--random-input-len", metavar="N", rules=(_CLASSES,), common=True)] = 1024
    output_len: Annotated[int, Field(ge=1, le=parsing.MOST_TOKENS), _length("output tokens (default 128)",
        flag="--random-output-len", metavar="N", rules=(_CLASSES,), common=True)] = 128
    # One number, or {"input": R, "output": R} as JSON.
    range_ratio: Annotated[str, _length("vary lengths by ± R, 0 to 1", flag="--random-range-ratio",
        metavar="R", rank=2, rules=(_CLASSES,), common=True)] = "0.0"
    prefix_len: Annotated[int, Field(ge=0, le=parsing.MOST_TOKENS), _length("tokens of the prefix that "
        "prompts share (default 0)", flag="--random-prefix-len", metavar="N", rank=4)] = 0
# fmt: on


ImageFormat = Literal["jpeg", "png"]


def _parse_sizes(text: str) -> object:
    from loadgen.features.images import image_sizes  # numpy, which the parser does without

    return image_sizes.parse_sizes(text)


def _parse_counts(text: str) -> object:
    from loadgen.features.images import image_sizes

    return image_sizes.parse_counts(text)


_NEEDED = Requirement(
    lambda values: bool(values["image_size"] or values["image_dir"]),
    "{flag} needs images: pass --image-size 1024x768, or --image-dir DIR",
)
_NO_TURNS = Conflict(
    lambda values: values["turns"] is not None,
    "{flag} is of single requests, and --turns makes conversations: leave out one of them",
)
# fmt: off
_image = partial(Setting, Makes.LOAD, group=IMAGES)
_vllms = partial(Setting, Makes.NOTHING, group=IMAGES, rank=1,
    rules=(Requirement(lambda values: False, "{flag} goes with --dataset-name random-mm"),))


class ImageKeys(BaseModel, frozen=True, defer_build=True):
    """The settings of the images that requests carry."""

    # As 1024x768; several with shares; or two distributions.
    image_size: Annotated[str, AfterValidator(make_check(_parse_sizes)), _image("pixels of generated "
        'images: 1024x768; "640x480 70%%, 1024x768 30%%"; or a distribution of widths and one of heights, '
        '"DIST x DIST"', read=refuse_blank("1024x768"), metavar="SIZE",
        rules=(Conflict("image_dir", "{flag} and {other} are two sources of images: leave out one of "
            "them"), _NO_TURNS))] = ""
    # A number, LEAST-MOST, or a distribution; "": 1.
    images: Annotated[str, BeforeValidator(convert_number), AfterValidator(make_check(_parse_counts)),
        _image("images per request: N, LEAST-MOST, or a distribution (default 1)", read=refuse_blank("1"),
        metavar="N", rules=(_NEEDED,))] = ""
    image_dir: Annotated[str, _image("send the PNG, JPEG, WebP and GIF files of a directory, in turn",
        metavar="DIR", rules=(_NO_TURNS,))] = ""
    image_format: Annotated[ImageFormat, _image("format of generated images (default jpeg)",
        rules=(Requirement("image_size", "--image-format is for generated "
            "images: pass --image-size 1024x768"),))] = "jpeg"
    random_mm_base_items_per_request: Annotated[int | None, Field(ge=0), _vllms(
        "images per request of random-mm (default 1)", metavar="N")] = None
    random_mm_num_mm_items_range_ratio: Annotated[float | None, _vllms("vary the number of images of "
        "random-mm by ± R, 0 to 1", read=number_between(0, 1), metavar="R")] = None
    random_mm_limit_mm_per_prompt: Annotated[str, _vllms("most images per request of random-mm, as "
        '{"image": 3}', metavar="JSON")] = ""
    random_mm_bucket_config: Annotated[str, _vllms('shares of image sizes of random-mm: "{(768, 1024, 1): '
        '1.0}", of (height, width, 1)', metavar="{(H,W,1): SHARE}")] = ""
# fmt: on


TraceFormat = Literal[
    "",
    "mooncake",
    "bailian",
    "azure-2023",
    "azure-2024",
    "burstgpt",
    "weka",
    "servegen",
    "timed",
    "tracelab",
    "otel",
    "workload",
]
_FORMATS = tuple(name for name in get_args(TraceFormat) if name)

_TWO_SOURCES = "--trace and {other} are two sources of requests: leave out one of them"
_OF_A_TRACE = Requirement(
    replays_trace, "{flag} applies to a trace: pass --trace FILE, or leave it out", Given.WRITTEN
)
_ALONE = (
    "--trace-replay {trace_replay} and --no-self-timed, which sends each request on its own, are two: leave "
    "out one of them"
)


_UNTIMED = (
    "--trace-jitter spreads requests of one instant, and those of sessions wait for responses: leave it out, "
    "or add --trace-replay recorded"
)


# fmt: off
_trace = partial(Setting, Makes.LOAD, group=TRACES, rules=(_OF_A_TRACE,))
_most = partial(_trace, read=integer_between(1, parsing.MOST_TOKENS), metavar="N")


class TraceKeys(BaseModel, frozen=True, defer_build=True):
    """The settings of which trace is sent, and how it is changed."""

    trace: Annotated[str, _trace("send a trace's requests at its times; of ServeGen, a directory",
        metavar="FILE", names_server=True,
        rules=(Conflict("dataset_path", _TWO_SOURCES), Conflict("dataset_name", _TWO_SOURCES)),
        common=True)] = ""
    trace_format: Annotated[TraceFormat, _trace(f"format of the trace: {', '.join(_FORMATS)} (default: by "
        "the rows' keys)", metavar="NAME")] = ""
    self_timed: Annotated[bool, _trace("send at the trace's times (default), not by rate and "
        "concurrency")] = True
    trace_replay: Annotated[Literal["recorded", "closed"], _trace("order of a trace's requests. closed: "
        "those of a session wait for responses (default for agents); recorded: at the trace's times",
        rules=(_OF_A_TRACE, Conflict(lambda values: values["self_timed"] is False, _ALONE)))] = "recorded"
    # Either end may be left out.
    trace_window: Annotated[str, _trace("part of the trace to send, in its seconds, as 600:1200",
        metavar="START:END")] = ""
    speed_up: Annotated[float, Field(gt=0.0, le=1e6), _trace("factor that the trace is sent "
        "faster by (default 1)", metavar="X")] = 1.0
    trace_max_input_len: Annotated[int | None, _most("most prompt tokens of a trace's request")] = None
    trace_max_output_len: Annotated[int | None, _most("most output tokens of a trace's request")] = None
    trace_too_long: Annotated[Literal["skip", "clip"], _trace("skip or clip longer requests of a trace "
        "(default skip)")] = "skip"
    trace_idle_cap: Annotated[float | None, _trace("longest pause without a request in a trace, in "
        "seconds; longer ones are cut", read=number_between(0, parsing.YEAR_S), metavar="S")] = None
    trace_jitter: Annotated[Literal["none", "uniform"], _trace("spread a trace's requests of one instant "
        "over the grid of its times: uniform, or none (default)",
        rules=(_OF_A_TRACE, Conflict(lambda values: values["trace_replay"] == "closed", _UNTIMED)))] = "none"
# fmt: on
