"""Keywords: the options of `loadgen.bench` next to the server's address and the profile."""

from __future__ import annotations

import inspect
import os
from argparse import ArgumentTypeError
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Self, TypedDict, TypeVar, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from loadgen.base.errors import UsageError
from loadgen.base.parsing import suggest_name
from loadgen.base.secrecy import hide_secrets
from loadgen.base.urls import check_headers
from loadgen.figures import objectives
from loadgen.plan import profile
from loadgen.plan.profile import Profile
from loadgen.run.command.credentials import NO_KEY, check_key
from loadgen.run.command.options import Options, normalise
from loadgen.settings import request_settings, vllm_flags
from loadgen.settings.data_settings import ANSWER_LENS
from loadgen.settings.keyword_types import BenchOptions, WorkloadOptions
from loadgen.settings.run_settings import TelemetryOptions, Tolerance
from loadgen.settings.server_settings import CallOptions
from loadgen.settings.setting import annotate_bounds, list_rows
from loadgen.settings.shard_settings import ShardOptions
from loadgen.settings.table import OPTIONS, PROFILE_KEYS

Call = TypeVar("Call", bound=Callable[..., Any])
_KEYS = frozenset(WorkloadOptions.__annotations__)
KEYWORDS = {
    row.name: row
    for row in list_rows(*OPTIONS, *PROFILE_KEYS, CallOptions)
    if row.name in BenchOptions.__annotations__
}
# Options that calls may give as the texts or lists of texts that flags take.
_AS_WORDS = {"workers", "power_url", *(row.name for row in list_rows(ShardOptions, TelemetryOptions))}
# Flags that are not spelled as their keyword, but mean the same value: random_input_len is taken too.
_FLAG_NAMES = {
    row.option.removeprefix("--").replace("-", "_"): name
    for name, row in KEYWORDS.items()
    if not {bool, dict, tuple} & {get_origin(kind) or kind for kind in row.kinds}
}


def parse_call(
    base_url: str | Sequence[str] | None,
    workload: str | os.PathLike[str] | Profile | None,
    given: Mapping[str, Any],
) -> tuple[Options, Profile]:
    """Parse a call's arguments into options and profile; raises UsageError that names a wrong keyword."""
    options = make_options(base_url, check_keywords(given))
    return options, make_profile(workload, options.overrides)


def check_keywords(
    given: Mapping[str, Any], kind: Any = BenchOptions, call: str = "bench()"
) -> dict[str, Any]:
    """Return a call's keywords converted to the types of `kind`; raises UsageError that names the wrong one.

    An option may have its flag's name: `random_input_len` is `input_len`. A `backend` keeps the name that it
    was given, which may be another client's; a Path becomes a text.
    """
    plain: dict[str, Any] = {}
    for written, value in given.items():
        name = written if written in kind.__annotations__ else _FLAG_NAMES.get(written, written)
        if name in plain:
            raise UsageError(f"{name}: given twice, once by its flag's name: leave one of them out")
        if name not in kind.__annotations__:
            raise UsageError(f"{call} has no keyword {name!r}{_suggest_keyword(name, kind)}")
        _refuse_zero_bytes(name, value)
        plain[name] = os.fspath(value) if isinstance(value, Path) else value
    for name, hint in _add_bounds(kind).__annotations__.items():
        if isinstance(value := plain.get(name), str) and get_origin(hint) is list:
            raise UsageError(f"{name}: expected a list, got a text: write {name}=[{value!r}]")
    if isinstance(api := plain.get("backend"), str):
        try:
            plain["backend"] = request_settings.find_backend(api)
        except ValueError as error:
            raise UsageError(f"backend: {error}") from None
    try:
        converted = dict(msgspec.convert(plain, _add_bounds(kind)))
    except msgspec.ValidationError as error:
        raise UsageError(_put_keyword_first(str(error))) from None
    return {**converted, "backend": api} if "backend" in converted else converted


@cache
def _add_bounds(kind: Any) -> Any:
    """Make a TypedDict of `kind` with bounds on its numbers, but on keys of a profile, which checks them."""
    types = get_type_hints(kind, include_extras=True)
    for name in types.keys() & KEYWORDS.keys() - _KEYS:
        types[name] = annotate_bounds(types[name], KEYWORDS[name].bounds, Meta)
    return TypedDict("Bounded", types, total=False)  # type: ignore[operator]


def make_options(
    base_url: str | Sequence[str] | None, given: Mapping[str, Any], varied: Collection[str] = ()
) -> Options:
    """Make the options of checked keywords, as the command does of flags; raises UsageError.

    `varied` are further keys of a profile, each with several values. An `api_key` becomes a header.
    """
    several = base_url if isinstance(base_url, list | tuple) else () if base_url is None else (base_url,)
    if wrong := next((url for url in several if not isinstance(url, str)), None):
        raise UsageError(f"base_url: expected `str` or a list of them, got `{type(wrong).__name__}`")
    if isinstance(base_url, list | tuple) and not several:
        raise UsageError("base_url: the list is empty")
    urls = tuple(several)
    for url in urls:
        _refuse_zero_bytes("base_url", url)
    values: dict[str, Any] = {"headers": {}, "metadata": (), **given, "base_url": urls, "quiet": True}
    if "output_len" in values and {"dataset_name", "dataset_path"} & {*values, *varied}:  # as --output-len
        values = dict.fromkeys(ANSWER_LENS, values["output_len"]) | values
    if "max_failures" in values:
        try:
            values["max_failures"] = Tolerance.parse(str(values["max_failures"]))
        except ValueError as error:
            raise UsageError(f"max_failures: {error}") from None
    values |= _read_words(values)
    check_headers(values["headers"].items(), "headers")
    if "api_key" in values:
        values["api_key_env"] = NO_KEY
        if key := values.pop("api_key"):
            authorization = f"Bearer {check_key(key, 'api_key')}"
            values["headers"] = {**values["headers"], "Authorization": authorization}
    values["metadata"] = tuple(map(hide_secrets, values["metadata"]))  # as in every result
    if "label" in values:
        values["label"] = hide_secrets(values["label"])
    return normalise(values, given.keys())


def _read_words(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of `_AS_WORDS`, given as texts or lists, parsed as flags are; raises UsageError."""
    read = {}
    for name in (name for name in values if name in _AS_WORDS):
        value, parse = values[name], KEYWORDS[name].read or str
        try:
            if isinstance(value, str):
                read[name] = parse(value)
            elif isinstance(value, list):
                read[name] = [parse(each) for each in value]
        except ArgumentTypeError as error:
            raise UsageError(f"{name}: {error}") from None
    return read


def _refuse_zero_bytes(name: str, value: object) -> None:
    if "\0" in str(value) and isinstance(value, str | Path):
        raise UsageError(f"{name}: has a zero byte")


class _Bare(str):
    """A text whose repr has no quotes, for an annotation in a signature as the source has it."""

    __slots__ = ()
    __repr__ = str.__str__

    def __new__(cls, written: Any) -> Self:
        """Make the text of an annotation, or of the reference that a TypedDict has for it."""
        return super().__new__(cls, getattr(written, "__forward_arg__", written))


_UNSET = _Bare("...")


def add_keyword_signature(options: type) -> Callable[[Call], Call]:
    """Make a decorator: a function of `**options` shows every keyword by name in help() and notebooks."""

    def with_names(function: Call) -> Call:
        plain = inspect.signature(function)
        named = [kept for kept in plain.parameters.values() if kept.kind is not kept.VAR_KEYWORD]
        named += [
            # The pages say what a keyword that is not given stands for: a profile decides most.
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_UNSET, annotation=_Bare(kind))
            for name, kind in options.__annotations__.items()
        ]
        vars(function)["__signature__"] = plain.replace(parameters=named)
        return function

    return with_names


def _suggest_keyword(name: str, kind: Any) -> str:
    """Return the end of an unknown keyword's error; "" without advice.

    The first of: a flag of vLLM's without effect, the nearest keyword, a flag of the command, one of vLLM's
    that is refused.
    """
    from loadgen.run.command.options import bench_parser  # only a wrong call needs it

    flag = f"--{name.replace('_', '-')}"
    if (reason := vllm_flags.explain_keyword_without_effect(flag)) is not None:
        return f": {reason}"
    if near_one := suggest_name(name, ["base_url", "profile", *kind.__annotations__]):
        return near_one
    if any(flag in action.option_strings for action in bench_parser()._actions):
        return f": {flag} is a flag of the command alone"
    reason = vllm_flags.explain_flag(flag)
    return f": {reason}" if reason else ""


def make_profile(
    workload: str | os.PathLike[str] | Profile | None, overrides: Mapping[str, Any], call: str = "bench()"
) -> Profile:
    """Return the profile that is given or named, or one of defaults (None), with keywords over it.

    Raises UsageError, also for a ladder.
    """
    overrides = dict(overrides)
    if "range_ratio" in overrides:
        overrides["range_ratio"] = str(overrides["range_ratio"])
    if workload is None:
        made = profile.build(overrides, call)
    elif isinstance(workload, Profile):
        given = profile.keep_keys(workload.model_dump(exclude_unset=True, warnings=False), overrides)
        made = profile.drop_stale_description(profile.build({**given, **overrides}, call), given, overrides)
    elif isinstance(workload, str | os.PathLike):
        made = profile.load(os.fspath(workload), overrides)
    else:
        raise UsageError(f"profile: expected a name, a path or a Profile, got `{type(workload).__name__}`")
    objectives.check_workload(made)
    if made.ladder is not None:
        raise UsageError(f"profile {made.name!r} is a ladder of input lengths: use `loadgen ladder`")
    return made


def _put_keyword_first(message: str) -> str:
    """Return msgspec's message with Python's types, after the keyword that it is about, if it names one."""
    reason, _, path = message.partition(" - at ")
    name = path.rpartition("$.")[2].strip("`")
    for of_json, of_python in (("object", "dict"), ("array", "list"), ("null", "None")):
        reason = reason.replace(f"`{of_json}`", f"`{of_python}`").replace(f"| {of_json}`", f"| {of_python}`")
    return f"{name}: {reason[:1].lower()}{reason[1:]}" if name else reason
