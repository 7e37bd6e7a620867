"""Data plan: the plan of a file, or of a workload without one, for any server, as `loadgen data` shows it."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from loadgen.base import parsing
from loadgen.base.arrays import Int64
from loadgen.base.errors import UsageError
from loadgen.base.parsing import integer_between, parse_with
from loadgen.engines.engines import UNKNOWN
from loadgen.features.data import row_kinds
from loadgen.plan import plan, profile, request_sources
from loadgen.plan.plan import Plan
from loadgen.plan.planned_requests import UNKNOWN_LEN, PromptRequests
from loadgen.plan.profile import Profile
from loadgen.plan.request_sources import ModelTarget, Seed
from loadgen.run.command.options import add_unlisted_flags, lay_over_lengths
from loadgen.settings import request_settings, setting, table

OPTIONS = ("tokenizer", "vocab_size", "model", "seed", "profile", "no_effect")  # no keys of a profile
_GROUPS = (setting.WORKLOAD, setting.SHAPES, setting.SESSIONS, setting.DATA, setting.LENGTHS, setting.TRACES)
_ANY_MODEL = "MODEL"
_ANY_API = ("openai", "openai-chat")


def add_workload_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a workload, its model and API, as `loadgen bench` has them."""
    add = parser.add_argument
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


def split_options(values: dict[str, Any]) -> dict[str, Any]:
    """Take the options that are no keys of a profile out of the flags' values, and return them."""
    return {name: values.pop(name) for name in OPTIONS if name in values}


def find_file_key(file: str, values: dict[str, Any]) -> str:
    """Return the profile's key for a file given alone, "trace" or "dataset_path", by flags or its first row.

    Raises UsageError if one of these is given, too.
    """
    for key in ("dataset_path", "trace"):
        if key in values:
            raise UsageError(f"{file} and --{key.replace('_', '-')} are two files: leave out one of them")
    if "dataset_name" in values:
        return "dataset_path"
    return "trace" if "trace_format" in values or row_kinds.is_trace(file) else "dataset_path"


def make_data_plan(values: dict[str, Any], options: dict[str, Any]) -> Plan:
    """Make the plan of a profile's keys and of the options given; raises UsageError.

    Without a backend among the keys it is for completions, or for chat if that refuses.
    """
    lay_over_lengths(values)  # to the lengths of the file's answers too
    workload = _load_workload(options.get("profile"), values)
    request_sources.check_files(workload)
    seed = Seed(options["seed"], chosen=True) if "seed" in options else Seed.draw()
    subject = ModelTarget(
        UNKNOWN,
        options.get("model", _ANY_MODEL),
        tokenizer=options.get("tokenizer"),
        vocab_size=options.get("vocab_size"),
        placeholder="model" not in options,
    )
    return _make_any_plan(workload, subject, seed, any_api="backend" not in values)


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


def count_lens(made: Plan, tokenizer: str | None) -> Int64 | None:
    """Return the prompts' tokens, the unknown ones counted by a tokenizer, int64[requests].

    None without a tokenizer, or if all are known.
    """
    lens = made.requests.input_lens[: len(made)]
    if tokenizer is None or not (lens == UNKNOWN_LEN).any():
        return None
    from loadgen.plan.tokenizers import load_tokenizer  # slow, and only lengths need it

    encode = load_tokenizer(tokenizer, "auto").encode
    counted = [
        len(encode(join_text(made, i), add_special_tokens=True)) if known == UNKNOWN_LEN else known
        for i, known in enumerate(lens.tolist())
    ]
    return np.array(counted, np.int64)


def join_text(made: Plan, i: int) -> str:
    """Return the text of a request's prompt or messages, without what a chat template adds."""
    if isinstance(made.requests, PromptRequests):
        return str(made.requests.prompt(i))
    return row_kinds.read_body_text(made.body(i))
