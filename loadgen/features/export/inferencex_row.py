"""InferenceX row: a run as the row that InferenceX's dashboard ingests.

Its keys and formulas are those of `build_result` in InferenceX's `infx/results/fixed_sequence.py`, for one
node: seconds, tokens per second and GPU, and interactivity, which is 1 / TPOT of each statistic. What a run
does not know is given by --set KEY=VALUE; without it a row would be filed under another machine or model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from loadgen.base.errors import UsageError
from loadgen.base.text import quote_value
from loadgen.facts.run_facts import Facts
from loadgen.features.export.ranked_latencies import rank_latencies
from loadgen.figures.figure_table import percentile_name
from loadgen.figures.metrics import list_known_throughputs
from loadgen.report.load_identity import find_asked_input, find_asked_output
from loadgen.report.result_file import name_marked_model
from loadgen.report.run_directory import Result

_COUNT = re.compile("[1-9][0-9]{0,8}")
_RANKS = (90.0, 99.0, 99.9)
_LATENCIES = ("ttft", "tpot", "itl", "e2el")
_PRECISIONS = {"fp8": "fp8", "nvfp4": "fp4", "mxfp4": "fp4", "bf16": "bf16", "int4": "int4"}
# Flags of an engine's command by which more than tensor parallelism, or more than one node, may be at work.
_SPREAD = re.compile(
    r"-{1,2}(enable-)?(ep|expert|dp|data|pp|pipeline|.*context-parallel|.*disagg|nnodes|kv-transfer)"
)


def _read_count(text: str) -> int:
    """Parse a number of at least 1; raises ValueError."""
    if not _COUNT.fullmatch(text):
        raise ValueError("give a whole number from 1 on")
    return int(text)


def _read_flag(text: str) -> bool:
    """Parse true or false; raises ValueError."""
    return _read_flag_word(text) == "true"


def _read_flag_word(text: str) -> str:
    """Parse true or false, as the word; raises ValueError."""
    if (word := text.lower()) not in ("true", "false"):
        raise ValueError("give true or false")
    return word


def _find_precision(facts: Facts) -> str | None:
    """Return InferenceX's word for the checkpoint's weights; None if they are unknown or it has none."""
    declared = facts.checkpoint.quantization if facts.checkpoint is not None else ""
    return next((word for begin, word in _PRECISIONS.items() if declared.lower().startswith(begin)), None)


def _find_drafts(facts: Facts) -> str | None:
    """Return "none" of an engine that is known to decode without drafts; None if it drafts, or may."""
    reports = facts.as_run is not None or facts.own_window is not None
    return "none" if reports and not facts.speculates else None


def _find_parallel(facts: Facts) -> int | None:
    """Return the tensor parallelism that the engine reports or was started with, 1 of one GPU; else None."""
    return facts.tensor_parallel or (1 if is_alone(facts) and facts.gpu_count == 1 else None)


def is_alone(facts: Facts) -> bool:
    """Whether the engine was started for the run, without a flag of more than tensor parallelism."""
    return facts.launched is not None and not any(map(_SPREAD.match, facts.launched.command))


def _if_alone(value: Any) -> Callable[[Facts], Any]:
    """Make a function from facts to `value` where the engine was started alone, else None."""
    return lambda facts: value if is_alone(facts) else None


def _if_unspread(facts: Facts) -> int | None:
    """Return 1, InferenceX's default, unless the engine was started with a flag that spreads it further."""
    return None if facts.launched is not None and not is_alone(facts) else 1


class RowField(msgspec.Struct, frozen=True):
    """A key of the row that describes the set-up: how a run knows it, and how its text is read."""

    key: str
    what: str
    find: Callable[[Facts], Any] = lambda facts: None  # None: not known
    read: Callable[[str], Any] = str


_FIELDS = (
    RowField("hw", "the GPU, as h100 or b200"),
    RowField("conc", "the concurrency", lambda facts: facts.held_concurrency, _read_count),
    RowField(
        "image", "the engine's container", lambda facts: facts.launched.image if facts.launched else None
    ),
    RowField("infmax_model_prefix", "InferenceX's name of the model, as gptoss or dsr1"),
    RowField("framework", "the engine", lambda facts: facts.server.engine.lower().replace(" ", "-") or None),
    RowField("precision", "of the weights, as fp8 or fp4", _find_precision),
    RowField("spec_decoding", "none, or the method, as mtp", _find_drafts),
    RowField("disagg", "whether prefill and decoding are apart", _if_alone(False), _read_flag),
    RowField("isl", "tokens of a prompt", lambda facts: find_asked_input(facts), _read_count),
    RowField("osl", "tokens of an answer", lambda facts: find_asked_output(facts), _read_count),
    RowField("is_multinode", "whether several machines serve", _if_alone(False), _read_flag),
    RowField("tp", "tensor parallelism", _find_parallel, _read_count),
    RowField("pp", "pipeline parallelism", _if_unspread, _read_count),
    RowField("dcp_size", "decode context parallelism", _if_unspread, _read_count),
    RowField("pcp_size", "prefill context parallelism", _if_unspread, _read_count),
    RowField("ep", "expert parallelism", _if_alone(1), _read_count),
    RowField("dp_attention", "whether attention is data parallel", _if_alone("false"), _read_flag_word),
)
_OPTIONAL = ("image",)  # the dashboard has rows without one
FIELDS = {field.key: field for field in _FIELDS}


def encode_inferencex_row(run: Result, given: Mapping[str, str]) -> str:
    """Encode a run's row as JSON; raises UsageError as `make_inferencex_row` does."""
    return json.dumps(make_inferencex_row(run, given), indent=2, allow_nan=False) + "\n"


def make_inferencex_row(run: Result, given: Mapping[str, str]) -> dict[str, Any]:
    """Make the row of a run, `given` being texts for fields of `FIELDS`, which replace what the run knows.

    Raises UsageError for an unknown field or a wrong value, for a field that is neither known nor given, for
    several nodes, and where the run has no throughput or not every prompt's tokens are known.
    """
    setup = _describe_setup(run.facts, given)
    if setup["disagg"] or setup["is_multinode"]:
        raise UsageError(
            "--format inferencex: rows of one node are written; of several it needs more than a run has"
        )
    known = list_known_throughputs(run.metrics)
    total, output = known["total_token_throughput"], known["output_throughput"]
    if not total or not output:
        raise UsageError(
            "--format inferencex: the run has no token throughput, or the tokens of some prompts are unknown"
        )
    gpus = setup["tp"] * setup["pp"] * setup["pcp_size"]
    row = {
        **setup,
        "model": name_marked_model(run.facts),
        "tput_per_gpu": total / gpus,
        "output_tput_per_gpu": output / gpus,
        "input_tput_per_gpu": (total - output) / gpus,
    }
    for key, figure in rank_latencies(run, _RANKS).items():
        if key in _LATENCIES:
            values_ms = {"mean": figure.mean_ms, "median": figure.median_ms, "std": figure.std_ms}
            values_ms |= {f"p{percentile_name(rank)}": figure.percentiles_ms[rank] for rank in _RANKS}
            for word, value_ms in values_ms.items():
                row[f"{word}_{key}"] = value_ms / 1e3
                if key == "tpot" and value_ms > 0:
                    row[f"{word}_intvty"] = 1e3 / value_ms
    return row


def _describe_setup(facts: Facts, given: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of the set-up, as given, else as the run knows; raises UsageError without one."""
    if unknown := [key for key in given if key not in FIELDS]:
        raise UsageError(f"--set {unknown[0]}: no such field; they are {', '.join(FIELDS)}")
    setup: dict[str, Any] = {}
    for key, field in FIELDS.items():
        if key not in given:
            setup[key] = field.find(facts)
            continue
        try:
            setup[key] = field.read(given[key])
        except ValueError as error:
            raise UsageError(f"--set {key}={quote_value(given[key])}: not {field.what}: {error}") from None
    missing = [key for key, value in setup.items() if value in (None, "") and key not in _OPTIONAL]
    if missing:
        first, names = missing[0], ", ".join(missing)
        raise UsageError(
            f"--format inferencex: the run does not know {names}: pass --set {first}=VALUE "
            f"({FIELDS[first].what}), and so for each"
        )
    return {key: value for key, value in setup.items() if value not in (None, "")}
