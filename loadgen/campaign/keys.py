"""Keys: the flags of `loadgen bench` as keys of a table, and back into a command line."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from loadgen.endpoint.secrecy import HIDDEN, Secrets
from loadgen.errors import UsageError
from loadgen.spelling import nearest

_WORKLOAD = "belongs in a profile: all that is compared is asked the same"
_WHOLE = "is the whole campaign's: write it above the tables"
_ELSEWHERE = "is not for a campaign"
_NOT_HERE = {
    **dict.fromkeys(("dataset_name", "input_len", "output_len", "range_ratio", "prefix_len"), _WORKLOAD),
    **dict.fromkeys(("num_prompts", "max_concurrency", "request_rate", "burstiness"), _WORKLOAD),
    **dict.fromkeys(("duration", "num_warmups", "warmup", "cooldown", "goodput"), _WORKLOAD),
    **dict.fromkeys(("percentile_metrics", "metric_percentiles"), _WORKLOAD),
    **dict.fromkeys(("seed", "fingerprint"), _WHOLE),
    "profile": 'is written profiles = ["high-load", …]',
    "repeat": "is written repeats = N, above the tables",
    "run_dir": "is a flag of `loadgen campaign`",
    "dry_run": "is a flag of `loadgen campaign`",
    "quiet": "is a flag of `loadgen campaign`",
    **dict.fromkeys(("api_key_env", "api_key_file"), "is a flag of `loadgen campaign`: a file takes no keys"),
    **dict.fromkeys(("disable_tqdm", "print_request", "strict", "explain", "selftest", "help"), _ELSEWHERE),
    **dict.fromkeys(("save_result", "save_detailed", "append_result"), _ELSEWHERE),
    **dict.fromkeys(("result_dir", "result_filename"), _ELSEWHERE),
}
_PATHS = ("model", "tokenizer", "model_config", "server_python")
_MERGED = ("server_env", "header")  # tables of which a checkpoint gives some more
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
Flags = Mapping[str, Any]


def laid_over(server: Flags, checkpoint: Flags) -> dict[str, Any]:
    """A server's flags with a checkpoint's over them; variables and headers one by one."""
    merged = {**server, **checkpoint}
    for key in _MERGED:
        tables = [one[key] for one in (server, checkpoint) if isinstance(one.get(key), dict)]
        if len(tables) == 2:
            merged[key] = {**tables[0], **tables[1]}
    return merged


class Variables(msgspec.Struct):
    """Variables of the environment that a file asks for: which it may read, and what came of it."""

    reads: Callable[[str], bool]
    missing: set[str] = msgspec.field(default_factory=set)  # not set
    barred: set[str] = msgspec.field(default_factory=set)  # not to be read by this file

    def value(self, match: re.Match[str]) -> str:
        """What stands in the place of ${VARIABLE} or ${VARIABLE:-default}."""
        name, default = match[1], match[2]
        said = os.environ.get(name)
        if said and not self.reads(name):
            self.barred.add(name)
            return match[0]
        found = said or default
        if found is None:
            self.missing.add(name)
        return match[0] if found is None else found


def filled(flags: Flags, variables: Variables) -> dict[str, Any]:
    """The flags with ${VARIABLE} and ${VARIABLE:-default} from the environment, and ~ in paths.

    A variable that is not set, or may not be read, stays as it is written, and is noted.
    """
    found = {key: _filled(value, variables) for key, value in flags.items()}
    for key in _PATHS:
        if isinstance(found.get(key), str):
            found[key] = os.path.expanduser(found[key])
    return found


def _filled(value: Any, variables: Variables) -> Any:
    if isinstance(value, dict):
        return {key: _filled(one, variables) for key, one in value.items()}
    if isinstance(value, list):
        return [_filled(one, variables) for one in value]
    return _VARIABLE.sub(variables.value, value) if isinstance(value, str) else value


def words(flags: Flags, parser: argparse.ArgumentParser, origin: str) -> list[str]:
    """The command line that these keys make; raises UsageError that names the key and the nearest known."""
    known = {
        option[2:].replace("-", "_"): (option, action)
        for action in parser._actions
        for option in action.option_strings
        if option.startswith("--")
    }
    own = [key for key, (_, action) in known.items() if action.dest not in _NOT_HERE]
    found: list[str] = []
    for key, value in flags.items():
        if key not in known:
            raise UsageError(f"{origin}: unknown key {key!r}{nearest(key, own)}")
        option, action = known[key]
        if reason := _NOT_HERE.get(action.dest):
            raise UsageError(f"{origin}: {key} {reason}")
        found += _word(option, action, value, f"{origin}: {key} = {value!r}")
    return found


def _word(option: str, action: argparse.Action, value: Any, origin: str) -> Iterator[str]:
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise UsageError(f"{origin}: say true or false")
        switch = isinstance(action, argparse.BooleanOptionalAction)
        opposite = f"--{option[5:]}" if option.startswith("--no-") else f"--no-{option[2:]}"
        yield from [option] if value else [opposite] if switch else []
    elif isinstance(value, bool):
        raise UsageError(f"{origin}: it takes a value")
    elif action.nargs == "+":
        yield option
        yield from _several(value, origin)
    elif isinstance(value, dict):
        yield f"{option}={json.dumps(value)}"
    elif isinstance(value, list):
        yield f"{option}={shlex.join(map(str, value))}"
    else:
        yield f"{option}={value}"


def _several(value: Any, origin: str) -> list[str]:
    if isinstance(value, dict):
        return [f"{name}={one}" for name, one in value.items()]
    found = value if isinstance(value, list) else [value]
    if not found or not all(isinstance(one, str) for one in found):
        raise UsageError(f"{origin}: write a table, or a list of texts")
    return found


def without_secrets(flags: Flags) -> dict[str, Any]:
    """The flags as they may be written down: no header's value, nothing that looks like a key."""
    shown: dict[str, Any] = Secrets.of(tables=(flags,)).mask(dict(flags), names_too=True)
    if "header" in shown:
        pairs = flags["header"]
        names = list(pairs) if isinstance(pairs, dict) else [re.split("[=:]", str(one))[0] for one in pairs]
        shown["header"] = dict.fromkeys(names, HIDDEN)
    return shown
