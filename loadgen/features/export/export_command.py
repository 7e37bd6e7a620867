"""Export command: `loadgen export`, a run as rows, llm-d's report or InferenceX's row for other programs.

The fields of llm-d's Benchmark Report v0.2.1 are those of `br_v0_2_json_schema.json` of llm-d-benchmark; what
a run does not know is left out.

InferenceX's row is what its dashboard ingests. Its keys and formulas are those of `build_result` in
InferenceX's `infx/results/fixed_sequence.py`, for one node: seconds, tokens per second and GPU, and
interactivity, which is 1 / TPOT of each statistic. What a run does not know is given by --set KEY=VALUE;
without it a row would be filed under another machine or model.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import re
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.base.errors import ExitCode, UsageError
from loadgen.base.parsing import Parser, parse_arguments
from loadgen.base.printing import print_text
from loadgen.base.text import quote_value
from loadgen.base.urls import is_this_machine
from loadgen.facts.run_facts import Facts
from loadgen.figures.distribution import Distribution
from loadgen.figures.figure_table import LATENCIES, percentile_name
from loadgen.figures.metrics import list_known_throughputs
from loadgen.figures.per_request import PerRequest
from loadgen.report import run_directory
from loadgen.report.load_identity import find_asked_lengths, has_range
from loadgen.report.request_rows import FORMS, NAMES, REQUESTS, write_named, write_rows
from loadgen.report.result_file import make_strict, name_marked_model
from loadgen.report.run_directory import Result
from loadgen.server.sample_file import list_gauge_series
from loadgen.settings.data_settings import RANDOM
from loadgen.verdict.verdict import Level

_REPORT_VERSION = "0.2.1"
_REPORT_RANKS = {
    0.1: "p0p1", 1.0: "p1", 5.0: "p5", 10.0: "p10", 25.0: "p25", 50.0: "p50", 75.0: "p75", 90.0: "p90",
    95.0: "p95", 99.0: "p99", 99.9: "p99p9",
}  # fmt: skip
# Its names of our latencies, and their units.
_REPORT_LATENCIES = {
    "time_to_first_token": ("ttft", "ms"),
    "normalized_time_per_output_token": ("e2el_per_token", "ms/token"),
    "time_per_output_token": ("tpot", "ms/token"),
    "inter_token_latency": ("itl", "ms/token"),
    "request_latency": ("e2el", "ms"),
}
_RATES = {
    "output_token_rate": ("output_throughput", "tokens/s"),
    "total_token_rate": ("total_token_throughput", "tokens/s"),
    "request_rate": ("request_throughput", "queries/s"),
}
# Its names of the sampled gauges, their units, and the factor from ours.
_GAUGES = {
    "running_requests": ("running", "count", 1),
    "waiting_requests": ("waiting", "count", 1),
    "kv_cache_usage": ("kv_cache_usage", "percent", 100),
}
_ENGINE = "engine"  # the label of the stack's one component
_POINTLESS = re.compile(r'(?m)^(\s*(?:"[^"\\]*": )?-?\d+)(e[-+]\d+,?)$')
_COUNT = re.compile("[1-9][0-9]{0,8}")
_ROW_RANKS = (90.0, 99.0, 99.9)
_ROW_LATENCIES = ("ttft", "tpot", "itl", "e2el")
_PRECISIONS = {"fp8": "fp8", "nvfp4": "fp4", "mxfp4": "fp4", "bf16": "bf16", "int4": "int4"}
# Flags of an engine's command by which more than tensor parallelism, or more than one node, may be at work.
_SPREAD = re.compile(
    r"-{1,2}(enable-)?(ep|expert|dp|data|pp|pipeline|.*context-parallel|.*disagg|nnodes|kv-transfer)"
)
Given = Mapping[str, str]  # --set KEY=VALUE


def rank_latencies(run: Result, ranks: Sequence[float]) -> dict[str, Distribution]:
    """Compute a run's latencies with these percentiles, by the figure's key; without those without samples.

    They are over the records that the run's own figures are computed from.
    """
    metrics = run.measure_ranks(ranks)
    known = {figure.key: (figure, getattr(metrics, figure.field)) for figure in LATENCIES}
    return {
        key: latency
        for key, (figure, latency) in known.items()
        if latency.n and (metrics.times_tokens or not figure.needs_tokens)
    }


def encode_llmd_report(run: Result) -> str:
    """Encode the report of a run as JSON that is YAML 1.1 too, so that llm-d's reader of `*.yaml` takes it.

    A reader of YAML takes 1e-05 for a text, and 1.0e-05 for a number.
    """
    text = json.dumps(make_llmd_report(run), indent=2, allow_nan=False)
    return _POINTLESS.sub(r"\1.0\2", text) + "\n"


def make_llmd_report(run: Result) -> dict[str, Any]:
    """Make the report of a run: when, the load, the engine, and the figures over successful requests."""
    facts = run.facts
    model, profile = name_marked_model(facts), facts.profile.name
    scenario = {"stack": [_describe_engine(facts)], "load": _describe_load(run)}
    results: dict[str, Any] = {"request_performance": {"aggregate": _list_figures(run)}}
    if gauges := _summarize_gauges(run):
        results["observability"] = {"components": [{"component_label": _ENGINE, "aggregate": gauges}]}
    return {
        "version": _REPORT_VERSION,
        "run": {
            "uid": str(uuid.uuid5(uuid.NAMESPACE_OID, f"{facts.plan_digest} {facts.started.isoformat()}")),
            "time": {
                "start": facts.started.isoformat(),
                "end": facts.finished.isoformat(),
                "duration": f"PT{run.metrics.duration_s:.9f}S",
            },
            "description": facts.label or (f"{model} [{profile}]" if profile else model),
        },
        "scenario": {name: part for name, part in scenario.items() if part},
        "results": results,
    }


def _describe_engine(facts: Facts) -> dict[str, Any]:
    """Describe the engine as a component, as an inference engine where its accelerators are known.

    That needs their name, their number, and that it is the number of tensor parallel ones: its reader takes
    each kind of parallelism that is left out for 1.
    """
    server, as_run, launched = facts.server, facts.as_run, facts.launched
    parallel, gpus = facts.tensor_parallel, facts.gpu_count
    gpu = facts.environment.get("gpu", "") if is_this_machine(server.url) else ""
    engine = {"tool": server.engine, "tool_version": server.version}
    flags = {"command": launched.command} if launched is not None else {}
    config = {key: value for key, value in (as_run.model_dump() if as_run else {}).items() if value}
    native = {"args": flags, "config": config}
    if gpu and gpus and parallel == gpus and not (facts.targets or facts.role_windows):
        standardized = {
            "kind": "inference_engine",
            **engine,
            "role": "replica",
            "replicas": 1,
            "model": {"name": name_marked_model(facts)},
            "accelerator": {"model": gpu, "count": gpus, "parallelism": {"tp": parallel}},
        }
    else:
        known = {"accelerator": gpu, "accelerators": gpus, "tensor_parallel": parallel}
        extra = {key: value for key, value in known.items() if value}
        standardized = {"kind": "generic", **engine, "model": name_marked_model(facts), **extra}
    return {
        "metadata": {"label": _ENGINE, "cfg_id": _hash_config(native)},
        "standardized": standardized,
        "native": {name: part for name, part in native.items() if part},
    }


def _hash_config(config: Mapping[str, Any]) -> str:
    return sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def _describe_load(run: Result) -> dict[str, Any]:
    """Describe the load in llm-d's terms, and natively as our profile; {} if prompts' lengths are unknown."""
    facts, profile = run.facts, run.facts.profile
    prompts, (prompt, answers) = _list_lengths(run)[0], find_asked_lengths(facts)
    lengths = _describe_lengths(facts, prompt, prompts)
    if not lengths:
        return {}
    config = profile.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    native = {"config": dict(make_strict(config))}
    rate = facts.planned_rate_per_s
    standardized: dict[str, Any] = {
        "tool": "loadgen",
        "tool_version": facts.environment.get("loadgen", ""),
        "parallelism": facts.client.workers,
        "source": "random" if facts.data.kind == RANDOM and not facts.data.text else "sampled",
        "input_seq_len": lengths,
    }
    if answers and profile.ignore_eos and not facts.ignore_eos_refused:
        standardized["output_seq_len"] = _describe_lengths(facts, answers, None)
    if math.isfinite(rate) and not profile.shaped:
        standardized["rate_qps"] = rate
    if facts.held_concurrency is not None:
        standardized["concurrency"] = facts.held_concurrency
    if facts.session_turns:
        standardized["multi_turn"] = {"enabled": True}
    return {"metadata": {"cfg_id": _hash_config(native)}, "standardized": standardized, "native": native}


def _describe_lengths(facts: Facts, asked: int | None, counted: NDArray[Any] | None) -> dict[str, Any]:
    """Describe lengths in tokens: fixed as asked, else by what was counted; {} where neither is known."""
    if asked is not None and not has_range(facts):
        return {"distribution": "fixed", "value": asked}
    if counted is None:
        return {} if asked is None else {"distribution": "uniform", "value": asked}
    form = "other" if asked is None else "uniform"
    return {
        "distribution": form,
        "value": float(counted.mean()),
        "std_dev": float(counted.std()),
        "min": int(counted.min()),
        "max": int(counted.max()),
    }


def _list_lengths(run: Result) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
    """Return the tokens of successful prompts and answers; None where one is unknown, or none succeeded."""
    each = PerRequest.from_records(run.counted, run.ask)
    prompts, answers = each.input_tokens[each.ok], each.output_tokens[each.ok]
    known = [lens if len(lens) and (lens >= 0).all() else None for lens in (prompts, answers)]
    return known[0], known[1]


def _list_figures(run: Result) -> dict[str, Any]:
    """Return the report's `requests`, `latency` and `throughput`, as far as known; an empty one is absent."""
    metrics, known = run.metrics, list_known_throughputs(run.metrics)
    requests: dict[str, Any] = {
        "total": metrics.requests,
        "failures": metrics.failed,
        "incomplete": metrics.cancelled + metrics.cut_off,
    }
    for name, lens in zip(("input_length", "output_length"), _list_lengths(run), strict=True):
        if lens is not None:
            requests[name] = _summarize("count", lens.astype(np.float64))
    ranked = rank_latencies(run, tuple(_REPORT_RANKS))
    latency = {
        name: {
            "units": unit,
            "mean": ranked[key].mean_ms,
            "stddev": ranked[key].std_ms,
            "min": ranked[key].min_ms,
            **{rank_name: ranked[key].percentiles_ms[rank] for rank, rank_name in _REPORT_RANKS.items()},
            "max": ranked[key].max_ms,
        }
        for name, (key, unit) in _REPORT_LATENCIES.items()
        if key in ranked
    }
    throughput = {
        name: {"units": unit, "mean": known[key]}
        for name, (key, unit) in _RATES.items()
        if metrics.duration_s and known.get(key) is not None
    }
    if "total_token_rate" in throughput:
        throughput["input_token_rate"] = {"units": "tokens/s", "mean": metrics.input_throughput_per_s}
    parts = {"requests": requests, "latency": latency, "throughput": throughput}
    return {name: part for name, part in parts.items() if part}


def _summarize(unit: str, values: NDArray[np.float64]) -> dict[str, Any]:
    """Return unit, mean, standard deviation of all, extremes and percentiles under llm-d's names."""
    return {
        "units": unit,
        "mean": float(values.mean()),
        "stddev": float(values.std()),
        "min": float(values.min()),
        "max": float(values.max()),
        **dict(
            zip(_REPORT_RANKS.values(), np.percentile(values, tuple(_REPORT_RANKS)).tolist(), strict=True)
        ),
    }


def _summarize_gauges(run: Result) -> dict[str, Any]:
    """Summarize the server's sampled gauges; one without samples is left out."""
    window = run.facts.own_window
    if window is None:
        return {}
    series = {each.quantity: each.values for each in list_gauge_series(window, 0)}
    return {
        name: _summarize(unit, series[quantity] * float(factor))
        for name, (quantity, unit, factor) in _GAUGES.items()
        if quantity in series and len(series[quantity])
    }


def _read_count(text: str) -> int:
    """Parse a number of at least 1; raises ValueError."""
    if not _COUNT.fullmatch(text):
        raise ValueError("give a whole number from 1 on")
    return int(text)


def _read_flag(text: str) -> bool:
    return _read_flag_word(text) == "true"


def _read_flag_word(text: str) -> str:
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
    RowField("isl", "tokens of a prompt", lambda facts: find_asked_lengths(facts)[0], _read_count),
    RowField("osl", "tokens of a response", lambda facts: find_asked_lengths(facts)[1], _read_count),
    RowField("is_multinode", "whether several machines serve", _if_alone(False), _read_flag),
    RowField(
        "tp",
        "tensor parallelism",
        lambda facts: facts.tensor_parallel or (1 if is_alone(facts) and facts.gpu_count == 1 else None),
        _read_count,
    ),
    RowField("pp", "pipeline parallelism", _if_unspread, _read_count),
    RowField("dcp_size", "decode context parallelism", _if_unspread, _read_count),
    RowField("pcp_size", "prefill context parallelism", _if_unspread, _read_count),
    RowField("ep", "expert parallelism", _if_alone(1), _read_count),
    RowField("dp_attention", "whether attention is data parallel", _if_alone("false"), _read_flag_word),
)
_OPTIONAL = ("image",)  # the dashboard has rows without one
FIELDS = {field.key: field for field in _FIELDS}


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
    for key, figure in rank_latencies(run, _ROW_RANKS).items():
        if key in _ROW_LATENCIES:
            values_ms = {"mean": figure.mean_ms, "median": figure.median_ms, "std": figure.std_ms}
            values_ms |= {f"p{percentile_name(rank)}": figure.percentiles_ms[rank] for rank in _ROW_RANKS}
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


class ExportFormat(msgspec.Struct, frozen=True):
    """A format: its help, the name of its file in the run's directory, and the function that writes it."""

    about: str
    file_name: str
    write: Callable[[Result, Given, IO[bytes]], object]
    takes: bool = False  # whether --set completes it
    what: str = "run"  # of the line that says where it went
    of_whole: bool = False  # whether it reports a whole run's load, without our verdict of it


def _make_row_format(form: str) -> ExportFormat:
    return ExportFormat(
        f"a row a request as {NAMES[form]}",
        f"{REQUESTS}.{form}",
        lambda run, given, file: write_rows(run, form, file),
        what=REQUESTS,
    )


# Forms by name; those of rows have a flag of their own too.
FORMATS = {
    **{form: _make_row_format(form) for form in FORMS},
    # llm-d's analysis globs benchmark_report_v0.2*yaml; JSON is YAML.
    "llm-d": ExportFormat(
        "llm-d's Benchmark Report v0.2.1",
        "benchmark_report_v0.2.yaml",
        lambda run, given, file: file.write(encode_llmd_report(run).encode()),
        of_whole=True,
    ),
    "inferencex": ExportFormat(
        "InferenceX's row of one node, completed by --set",
        "inferencex.json",
        lambda run, given, file: file.write(
            f"{json.dumps(make_inferencex_row(run, given), indent=2, allow_nan=False)}\n".encode()
        ),
        takes=True,
        of_whole=True,
    ),
}


_LOG = logging.getLogger("loadgen")


def export_parser() -> argparse.ArgumentParser:
    """Make the argument parser of `loadgen export`."""
    parser = Parser(
        prog="loadgen export",
        usage="loadgen export RUN_DIR (--jsonl | --csv | --parquet | --format NAME)\n"
        "                      [--set KEY=VALUE] [--output FILE]",
        allow_abbrev=False,
        description="Write a run for other programs: its requests, a row each (ids, times in nanoseconds, "
        "tokens, failures), or another project's report of it.",
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", type=Path, help="the run directory")
    target = parser.add_mutually_exclusive_group(required=True)
    for name in FORMS:
        about = FORMATS[name].about
        target.add_argument(f"--{name}", dest="format", action="store_const", const=name, help=about)
    others = "; ".join(f"{name}: {row.about}" for name, row in FORMATS.items() if name not in FORMS)
    listed = f"format of a row per request, or {others}"
    target.add_argument("--format", choices=tuple(FORMATS), metavar="NAME", help=listed)
    parser.add_argument(
        "--set",
        dest="given",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="value that the run does not know of InferenceX's row, as hw=h100 (docs/results.md)",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help=f"file, - for standard output (default: the format's name in RUN_DIR, as {REQUESTS}.csv)",
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Run `loadgen export`, print where the run went, and return the exit code."""
    parser = export_parser()
    if {"-h", "--help"} & set(argv):
        parser.print_help()
        return ExitCode.FIGURES
    asked = parse_arguments(parser, argv)
    form = FORMATS[asked.format]
    if asked.given and not form.takes:
        taking = ", ".join(name for name, row in FORMATS.items() if row.takes)
        raise UsageError(f"--set: of --format {taking} alone")
    parted = {pair: pair.partition("=") for pair in asked.given}
    for pair, (key, equals, _) in parted.items():
        if not (key and equals):
            raise UsageError(f"--set {pair}: write KEY=VALUE")
    given = {key.strip(): value.strip() for key, _, value in parted.values()}
    run = run_directory.load(asked.run_dir)
    if form.of_whole and (shard := run.facts.shard) is not None:
        raise UsageError(
            f"--format {asked.format}: the run is shard {shard.name}, a part of the load: join all by "
            "`loadgen merge`"
        )
    if asked.output == "-":
        if sys.stdout is None:
            raise UsageError("standard output is closed: use --output FILE")
        try:
            form.write(run, given, sys.stdout.buffer)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            pass  # who reads it has read what was wanted, as of any other verb
        except OSError as error:
            raise UsageError(
                f"cannot write to standard output: {error.strerror}; use --output FILE"
            ) from None
    else:
        path = asked.run_dir / form.file_name if asked.output is None else Path(asked.output)
        write_named(path, lambda file: form.write(run, given, file))
        print_text(f"{form.what}: {path}", sys.stdout)
    if form.of_whole and (level := run.verdict.level) is not Level.VALID:
        why = ", ".join(run.verdict.reasons)
        _LOG.warning("the run is %s (%s), which --format %s has no place for", level.value, why, asked.format)
    return ExitCode.FIGURES
