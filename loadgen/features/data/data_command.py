"""`loadgen data`: what a file, or a workload without one, would have sent; no server is asked."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from loadgen.base import parsing
from loadgen.base.arrays import Int64
from loadgen.base.errors import ExitCode, UsageError
from loadgen.base.parsing import Parser, integer_between, parse_with
from loadgen.base.printing import print_text
from loadgen.base.text import format_json
from loadgen.engines.engines import UNKNOWN
from loadgen.features import DATA_VERBS
from loadgen.features.data import export_plan, row_kinds
from loadgen.features.data.data_preview import PlanPreview
from loadgen.plan import plan, profile, request_sources
from loadgen.plan.plan import Plan
from loadgen.plan.planned_requests import UNKNOWN_LEN, PromptRequests
from loadgen.plan.profile import Profile
from loadgen.plan.request_sources import ModelTarget, Seed
from loadgen.run.command import progress
from loadgen.run.command.options import (
    add_unlisted_flags,
    lay_over_lengths,
    parse_words,
)
from loadgen.settings import request_settings, setting, table

_OPTIONS = (
    "file",
    "json",
    "export_requests",
    "tokenizer",
    "vocab_size",
    "model",
    "seed",
    "profile",
    "no_effect",
)
_GROUPS = (setting.WORKLOAD, setting.SHAPES, setting.SESSIONS, setting.DATA, setting.LENGTHS, setting.TRACES)
_ANY_MODEL = "MODEL"
_ANY_API = ("openai", "openai-chat")


def data_parser() -> argparse.ArgumentParser:
    """Make the parser of `loadgen data`; flags that are not given are absent from its result."""
    parser = Parser(
        prog="loadgen data",
        usage="%(prog)s [FILE] [FLAG ...]" + "".join(f"\n       %(prog)s {name} …" for name in DATA_VERBS),
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        description="Show what a file holds as a run would send it: kind, rows, lengths, shared prefixes, "
        "arrivals, what is left out, and one request. Nothing is sent. Without FILE: random prompts.",
        epilog="The flags are those of `loadgen bench`. "
        + " ".join(f"`loadgen data {name}`: {verb.summary}." for name, verb in DATA_VERBS.items()),
    )
    add = parser.add_argument
    add("file", nargs="?", metavar="FILE", help="as --dataset-path FILE or --trace FILE, by what it holds")
    add("--json", action="store_true", help="print JSON")
    add("--export-requests", metavar="FILE", help="write the requests as rows of JSON")
    add(
        "--tokenizer",
        metavar="DIR",
        help="directory or name of the model's tokenizer, to count what has none",
    )
    add(
        "--vocab-size",
        type=integer_between(1, parsing.MOST_IDS),
        metavar="N",
        help="token ids are drawn below it",
    )
    add("--model", metavar="NAME", help="the name that requests carry")
    add(
        "--backend",
        type=parse_with(request_settings.find_backend),
        metavar="{" + ",".join(request_settings.APIS) + "}",
        help="API (default: the one that takes the requests)",
    )
    table.add_groups(parser, _GROUPS)
    add_unlisted_flags(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    """Run `loadgen data`: print the preview of the plan, and write --export-requests; return the exit code 0.

    A word of DATA_VERBS runs that instead (a file of this name is `./NAME`). Raises UsageError. Nothing is
    sent.
    """
    if argv and argv[0] in DATA_VERBS:
        return DATA_VERBS[argv[0]].run(argv[1:])
    values = parse_words(data_parser(), argv, intermixed=True)
    options = {name: values.pop(name) for name in _OPTIONS if name in values}
    if (file := options.get("file")) is not None:
        values[_find_key(file, values)] = file
    lay_over_lengths(values)  # to the lengths of the file's answers too
    workload = _load_workload(options.get("profile"), values)
    request_sources.check_files(workload)
    seed = Seed(options["seed"], chosen=True) if "seed" in options else Seed.draw()
    tokenizer = options.get("tokenizer")
    subject = ModelTarget(
        UNKNOWN,
        options.get("model", _ANY_MODEL),
        tokenizer=tokenizer,
        vocab_size=options.get("vocab_size"),
        placeholder="model" not in options,
    )
    with progress.display(quiet=False).waiting("reading"):
        made = _make_any_plan(workload, subject, seed, any_api="backend" not in values)
        counted = _count_lens(made, tokenizer)
    preview = PlanPreview(made, counted)
    if options.get("json"):
        print_text(format_json(preview.json(), indent=2), sys.stdout)
    else:
        print_text("\n".join(preview.lines()), sys.stdout)
    export_plan.export_and_print(made, options.get("export_requests"), tokenizer, to_errors="json" in options)
    return ExitCode.FIGURES


def _find_key(file: str, values: dict[str, Any]) -> str:
    """Return the profile's key for a file given alone, "trace" or "dataset_path", by flags or its first row.

    Raises UsageError if one of these is given, too.
    """
    for key in ("dataset_path", "trace"):
        if key in values:
            raise UsageError(f"{file} and --{key.replace('_', '-')} are two files: leave out one of them")
    if "dataset_name" in values:
        return "dataset_path"
    return "trace" if "trace_format" in values or row_kinds.is_trace(file) else "dataset_path"


def _load_workload(name: str | None, values: dict[str, Any]) -> Profile:
    """Load a profile, or the defaults without a name, with these values over it; raises UsageError."""
    if name is None:
        return profile.build(values)
    if "," in name:
        raise UsageError("--profile: one profile at a time")
    return profile.load(name, values, flags=True)


def _make_any_plan(workload: Profile, subject: ModelTarget, seed: Seed, any_api: bool) -> Plan:
    """Make the plan; with `any_api` for completions, else for chat if that refuses.

    Raises the first UsageError.
    """
    if not any_api:
        return plan.make(workload, subject, seed)
    refused: UsageError | None = None
    for backend in _ANY_API:
        try:
            return plan.make(workload.model_copy(update={"backend": backend}), subject, seed)
        except UsageError as error:
            refused = refused or error
    assert refused is not None
    raise refused


def _count_lens(made: Plan, tokenizer: str | None) -> Int64 | None:
    """Return the prompts' tokens, the unknown ones counted by a tokenizer, int64[requests].

    None without a tokenizer, or if all are known.
    """
    lens = made.requests.input_lens[: len(made)]
    if tokenizer is None or not (lens == UNKNOWN_LEN).any():
        return None
    from loadgen.plan.tokenizers import load_tokenizer  # slow, and only lengths need it

    encode = load_tokenizer(tokenizer, "auto").encode
    counted = [
        len(encode(_join_text(made, i), add_special_tokens=True)) if known == UNKNOWN_LEN else known
        for i, known in enumerate(lens.tolist())
    ]
    return np.array(counted, np.int64)


def _join_text(made: Plan, i: int) -> str:
    """Return the text of a request's prompt or messages, without what a chat template adds."""
    if isinstance(made.requests, PromptRequests):
        return str(made.requests.prompt(i))
    return row_kinds.read_body_text(made.body(i))
