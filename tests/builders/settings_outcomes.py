"""Outcomes of settings: what many values of each flag, key and keyword become, or why they are refused.

`python tests/builders/settings_outcomes.py` stores them in tests/settings/outcomes, one file for each way in.
One more command line is one more key of lines.json there, of commands.json or of plans.json, one more text of
a profile's file one of files.json, and keys or keywords that are given together one of key_combinations.json
or of calls.json, with any outcome until it is stored.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import itertools
import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from builders.loops import read_tables
from loadgen.base.errors import LoadgenError
from loadgen.engines.engines import UNKNOWN
from loadgen.figures import objectives
from loadgen.plan import plan, profile
from loadgen.plan.profile import Profile
from loadgen.plan.request_sources import ModelTarget, Seed
from loadgen.run.command import keywords
from loadgen.run.command.bench import check_command
from loadgen.run.command.options import Options, bench_parser, parse
from loadgen.settings.keyword_types import BenchOptions
from loadgen.settings.validation import FLAGS, ServerSettings, validate_table

TABLES = read_tables("settings")

STORED = Path(__file__).parents[1] / "settings" / "outcomes"
URL = "http://h:1"
PARSER = bench_parser()
DEFAULTS = Options()
TEXTS = ("", "0", "1", "-1", "2.5", "1e99", "nan", "x", "10%")
VALUES: tuple[Any, ...] = (None, True, 0, 1, -1, 2.5, 1e99, float("nan"), "", "x", "10%", [], ["x"], {"a": 1})
# Of settings that take none of these: a value that is right, and one that is nearly so.
FITTING = TABLES["fitting"]
# A value of a key that is not its default, where 4 is none: each is tried with each.
SET = TABLES["set"]
Outcomes = dict[str, str]


def list_flag_outcomes() -> Iterator[tuple[str, str]]:
    """Each flag of the command, alone, and with many values where it takes one."""
    for action in PARSER._actions:
        for flag in action.option_strings:
            texts = (*TEXTS, *map(str, action.choices or ()), *FITTING.get(_find_key(action), ()))
            if action.nargs == 0:
                lines: Iterable[list[str]] = ([flag],)
            else:
                lines = ([flag], *([f"{flag}={text}"] for text in texts))
            for words in (line for line in lines if not flag.startswith(("-h", "--help"))):
                yield " ".join(words), _try(partial(_describe_command, words))


def list_pairs_of_flags() -> Iterator[tuple[str, str]]:
    """Pairs of flags of a server or a start, those that are refused."""
    words = {row: _find_word(row) for row in PARSER._actions if _may_clash(row)}
    for one, two in itertools.combinations(words, 2):
        outcome = _try(partial(_describe_command, [*words[one], *words[two]]))
        if outcome.startswith("refused"):
            yield " ".join([*words[one], *words[two]]), outcome


def list_lines() -> Iterator[tuple[str, str]]:
    """Command lines of several flags, or with values of their own: those that are stored."""
    for line in read_stored("lines"):
        yield line, _try(partial(_describe_command, shlex.split(line)))


def list_commands() -> Iterator[tuple[str, str]]:
    """Command lines that are checked as a whole before anything starts: those that are stored."""
    for line in read_stored("commands"):
        yield line, _try(partial(_check_command, shlex.split(line)))


def list_plans() -> Iterator[tuple[str, str]]:
    """Command lines of which a plan is made: those that are stored."""
    for line in read_stored("plans"):
        yield line, _try(partial(_make_plan, shlex.split(line)))


def list_key_outcomes() -> Iterator[tuple[str, str]]:
    """Each key of a profile's file and of its [server] table, with many values."""
    tables: dict[type[Any], str] = {Profile: "a.toml", ServerSettings: "a.toml: [server]"}
    for kind, origin in tables.items():
        for key in (*kind.model_fields, "unknown_key", "max_concurency"):
            for value in (*VALUES, *FITTING.get(key, ()), *([SET[key]] if key in SET else [])):
                yield (
                    f"{origin} {key} = {value!r}",
                    _try(partial(_describe_table, kind, {key: value}, origin)),
                )
            yield f"flag {key} = -5", _try(partial(_describe_table, kind, {key: -5}, FLAGS))


def list_files() -> Iterator[tuple[str, str]]:
    """Texts of a profile's file: those that are stored."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "mine.toml")
        for text in read_stored("files"):
            path.write_bytes(text.encode("latin-1"))
            yield text, _try(partial(_load_file, path)).replace(str(path), "FILE")


def list_pairs_of_keys() -> Iterator[tuple[str, str]]:
    """Pairs of keys of a profile, those that are refused, and which keys of a file others replace."""
    values = {key: SET.get(key, 4) for key in Profile.model_fields if key != "server"}
    alone = {key: _try(partial(_build, {key: value})) for key, value in values.items()}
    yield from alone.items()
    for one, two in itertools.combinations(values, 2):
        outcome = _try(partial(_build, {one: values[one], two: values[two]}))
        if outcome.startswith("refused") and outcome not in (alone[one], alone[two]):
            yield f"{one} {two}", outcome
    for one, value in values.items():
        kept = profile.keep_keys(values, {one: value})
        if len(kept) < len(values):
            yield f"{one} replaces", ", ".join(sorted(values.keys() - kept.keys()))


def list_combinations() -> Iterator[tuple[str, str]]:
    """Keys that are given together, which pairs of keys do not show: those that are stored."""
    for keys in read_stored("key_combinations"):
        yield keys, _try(partial(_build, ast.literal_eval(keys)))


def list_keyword_outcomes() -> Iterator[tuple[str, str]]:
    """Each keyword of a call, with many values, and by its flag's name."""
    others = "concurrency endpoint_type explain host lora_modules max_concurency multi_turn random_input_len"
    names = {
        *BenchOptions.__annotations__,
        *others.split(),
        "save_result",
        "tokenizer_mode",
        "trust_remote_code",
    }
    for name in sorted(names):
        for value in (*VALUES, *FITTING.get(name, ()), *([SET[name]] if name in SET else [])):
            yield f"{name}={value!r}", _try(partial(_describe_call, URL, {name: value}))
    for name in sorted(BenchOptions.__annotations__):
        made = keywords.parse_call(None, None, {name: good})[0] if (good := _find_good(name)) else None
        if made is not None:
            yield f"{name} alone", f"{made.base_url} {made.default_url} {made.default_port} {made.workers}"


def list_calls() -> Iterator[tuple[str, str]]:
    """A call's place and keywords that are given together: those that are stored."""
    for call in read_stored("calls"):
        yield call, _try(partial(_describe_call, *ast.literal_eval(call)))


WAYS: dict[str, Callable[[], Iterator[tuple[str, str]]]] = {
    "flags": list_flag_outcomes,
    "flag_pairs": list_pairs_of_flags,
    "lines": list_lines,
    "commands": list_commands,
    "plans": list_plans,
    "keys": list_key_outcomes,
    "files": list_files,
    "key_pairs": list_pairs_of_keys,
    "key_combinations": list_combinations,
    "keywords": list_keyword_outcomes,
    "calls": list_calls,
}


def collect_outcomes(way: str) -> Outcomes:
    """Return the outcomes of one way in, by what was given."""
    return {given: _make_alike(outcome) for given, outcome in WAYS[way]()}


def _make_alike(outcome: str) -> str:
    """An outcome without this directory, and without what argparse words in each version otherwise."""
    return re.sub(r" \(choose from .*", "", outcome.replace(os.getcwd(), "CWD"))


def read_stored(way: str) -> Outcomes:
    """Read the outcomes that are stored."""
    stored: Outcomes = json.loads((STORED / f"{way}.json").read_text("utf-8"))
    return stored


def _find_key(action: argparse.Action) -> str:
    renamed = {
        "header": "headers",
        "launch": "engine",
        "launch_command": "command",
        "server_env": "environment",
    }
    return renamed.get(action.dest, action.dest)


def _find_word(action: argparse.Action) -> list[str]:
    if action.nargs == 0:
        return [action.option_strings[-1]]
    fitting = (*(action.choices or ()), *FITTING.get(_find_key(action), ("4",)))
    return [f"{action.option_strings[0]}={fitting[0]}"]


def _may_clash(action: argparse.Action) -> bool:
    flag = action.option_strings[0]
    beginnings = (
        "--backend --base --ca- --client --container --context --dry --endpoint --host --launch --port "
        "--prefix-caching --preset --profile --server --workers"
    )
    return flag.startswith(tuple(beginnings.split()))


def _find_good(name: str) -> Any:
    """A value that a keyword takes, or None."""
    for value in (SET.get(name), *FITTING.get(name, ()), 4, True, "x", ["x"], {"a": "b"}):
        try:
            if value is not None and keywords.parse_call(URL, None, {name: value}):
                return value
        except LoadgenError:
            continue
    return None


def _try(make: Callable[[], Any]) -> str:
    try:
        return str(make())
    except LoadgenError as error:
        return f"refused: {error}"


def _describe_command(words: list[str]) -> str:
    options = parse(words, PARSER)
    overrides = options.overrides
    made = profile.load("smoke", overrides, True) if options.profiles else profile.build(overrides)
    objectives.check_profile(made)
    return f"{_change(options)} {_change_of_model(Profile, made)}"


def _check_command(words: list[str]) -> str:
    check_command(parse(words, PARSER))
    return "taken"


def _make_plan(words: list[str]) -> str:
    asked = profile.build(parse(words, PARSER).overrides)
    made = plan.make(asked, ModelTarget(UNKNOWN, "m", vocab_size=1000), Seed(1, chosen=True))
    return f"{len(made)} requests"


def _describe_table(kind: type[Any], table: Mapping[str, Any], origin: str) -> str:
    return _change_of_model(kind, validate_table(kind, table, origin))


def _load_file(path: Path) -> str:
    return _change_of_model(Profile, profile.load(str(path), {}))


def _build(keys: Mapping[str, Any]) -> str:
    return _change_of_model(Profile, profile.build(keys))


def _describe_call(url: Any, given: Mapping[str, Any]) -> str:
    options, workload = keywords.parse_call(url, None, given)
    return f"{_change(options)} {_change_of_model(Profile, workload)}"


def _list_fields(value: Any) -> list[str]:
    if isinstance(value, msgspec.Struct):
        return sorted(value.__struct_fields__)
    return sorted(field.name for field in dataclasses.fields(value))


def _change(options: Options) -> str:
    """The options that are not the defaults."""
    given = {name: getattr(options, name) for name in _list_fields(options)}
    changed = {name: value for name, value in given.items() if value != getattr(DEFAULTS, name)}
    if "launching" in changed:
        launch = changed["launching"]
        changed["launching"] = {name: getattr(launch, name) for name in _list_fields(launch)}
    return repr(changed)


def _change_of_model(kind: type[Any], made: Any) -> str:
    default = kind()
    return repr({key: value for key, value in made if value != getattr(default, key)})


def main(ways: list[str]) -> None:
    """Store the outcomes of these ways, by default of all."""
    STORED.mkdir(exist_ok=True)
    for way in ways or WAYS:
        text = json.dumps(collect_outcomes(way), indent=0, ensure_ascii=False)
        (STORED / f"{way}.json").write_text(f"{text}\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
