"""Campaign file: what is compared, on which servers, under which workloads, in TOML."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from loadgen.base.errors import UsageError
from loadgen.base.parsing import MOST_SECONDS, MOST_SEED, suggest_name
from loadgen.base.secrecy import HIDDEN, Secrets
from loadgen.figures import objectives
from loadgen.plan import profile
from loadgen.settings.setting import Makes
from loadgen.settings.table import list_profile_keys
from loadgen.settings.validation import validate_table
from loadgen.study.answer.answer_settings import AnswerRequest
from loadgen.study.limit_record import LimitTable
from loadgen.study.series.campaign.quality_cells import QualityTable
from loadgen.study.series.campaign.steps import Name, StepTable

Names = Annotated[tuple[Name, ...], Field(strict=False)]


class CoolDown(BaseModel, extra="forbid", frozen=True, strict=True, allow_inf_nan=False):
    """How long to wait before a cell until the machine is no warmer than that."""

    to_c: float
    at_most_s: Annotated[float, Field(gt=0, le=MOST_SECONDS)] = 600.0


class AnswerTable(BaseModel, extra="forbid", frozen=True, strict=True, allow_inf_nan=False):
    """`[answer]`: what a checkpoint must hold to be taken, as by the flags of `loadgen compare`."""

    fits: str | None = None
    slo: str | None = None
    max_kl: float | None = None
    price_per_hour: float | None = None
    lm_eval: dict[str, str] = Field(default_factory=dict)  # files of scores by checkpoint


class CheckpointTable(BaseModel, extra="allow", frozen=True, strict=True):
    """One `[[checkpoints]]`: a row of the comparison; every other key is a flag of `loadgen bench`."""

    name: Name
    servers: Names | None = None  # None: all of the file's
    profiles: Names | None = None  # None: those of the file
    lm_eval: str = ""  # results_*.json of lm-evaluation-harness on it; "": none


class CampaignOptions(BaseModel, extra="forbid", frozen=True, strict=True, allow_inf_nan=False):
    """The keys that a campaign's file decides for the whole campaign, as its record has them too."""

    name: Name
    description: str = ""
    repeats: Annotated[int, Field(ge=1, le=1000)] = 5
    starts: Literal["every-repeat", "once"] = "every-repeat"  # of a server
    baseline: str = ""  # a checkpoint, or "checkpoint on server"; "": the first
    margin: Annotated[float, Field(gt=0, lt=1)] = 0.02  # of equivalence, 0.02 is ± 2 %
    hardware: str | None = None  # key of the roofline's table
    fingerprint: bool = False
    cool_down: CoolDown | None = None
    limit: LimitTable | None = None  # each cell is a search, as by `loadgen limit`
    answer: AnswerTable | None = None
    quality: QualityTable | None = None

    @property
    def steps(self) -> dict[str, StepTable]:
        """The tables that ask for steps, by their names."""
        tables = {key: getattr(self, key) for key in CampaignOptions.model_fields}
        return {key: table for key, table in tables.items() if isinstance(table, StepTable)}


class CampaignFile(CampaignOptions, frozen=True):
    """The whole file; relative profiles are next to it."""

    profiles: Names = ()
    seed: Annotated[int, Field(ge=0, le=MOST_SEED)] | None = None  # None: drawn and recorded
    servers: dict[Name, dict[str, Any]] = Field(default_factory=dict)
    checkpoints: tuple[CheckpointTable, ...]


EXAMPLE = "example"  # the shipped campaign that --example prints


def list_shipped() -> dict[str, Path]:
    """List the shipped campaigns by name."""
    return {path.stem: path for path in sorted((profile.find_shipped() / "campaigns").glob("*.toml"))}


def locate_campaign(name_or_path: str) -> Path:
    """Return the file of a campaign, by the name of a shipped one or a path; raises UsageError if none."""
    return profile.locate(name_or_path, list_shipped(), "campaign")


def load_campaign(path: Path) -> CampaignFile:
    """Read and check a campaign's TOML file, whose stem is its name if it has none; raises UsageError."""
    table = profile.read_toml(path, "campaign")
    rows = table.pop("checkpoints", None)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows) or not rows:
        raise UsageError(f"{path}: nothing to compare: write a [[checkpoints]] table for each")
    servers = table.get("servers", {})
    if not isinstance(servers, dict) or not all(isinstance(server, dict) for server in servers.values()):
        raise UsageError(f"{path}: servers: write a [servers.NAME] table for each")
    for key, kind in _TABLES.items():
        if isinstance(given := table.get(key), dict):
            table[key] = _read_table(kind, given, path, f"{path}: [{key}]")
    checkpoints = []
    for number, row in enumerate(rows, 1):
        if (name := row.get("name")) is None:
            raise UsageError(f"{path}: [[checkpoints]] number {number} has no name")
        checkpoints.append(validate_table(CheckpointTable, row, f"{path}: checkpoint {name!r}"))
    table = {"name": path.stem, **table, "checkpoints": tuple(checkpoints)}
    campaign = validate_table(CampaignFile, table, str(path))
    _check_names(campaign, path)
    return campaign


_TABLES: dict[str, type[BaseModel]] = {
    "cool_down": CoolDown,
    "answer": AnswerTable,
    "quality": QualityTable,
    "limit": LimitTable,
}


def _read_table(kind: type[BaseModel], given: dict[str, Any], path: Path, where: str) -> BaseModel:
    """Read and check a table of the file at `path`; raises UsageError."""
    if kind is AnswerTable and "lm_eval" in given:
        raise UsageError(f"{where}: lm_eval is a key of each of [[checkpoints]]")
    if kind is QualityTable and set(given) < set(QualityTable.model_fields) - {"reference"}:
        raise UsageError(f"{where} has no reference: name one of the checkpoints")
    table = validate_table(kind, given, where)
    try:
        if isinstance(table, AnswerTable):
            AnswerRequest.read(given)
        elif isinstance(table, LimitTable):
            objectives.parse_objectives(table.slo)
        return table.read_beside(path.parent) if isinstance(table, StepTable) else table
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None


def _check_names(campaign: CampaignFile, path: Path) -> None:
    """Raise UsageError for a checkpoint that is listed twice, or lacks a known server or a workload."""
    names = [row.name for row in campaign.checkpoints]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"{path}: checkpoint {twice!r} is listed twice: give each a name of its own")
    for row in campaign.checkpoints:
        for server in row.servers or ():
            if server not in campaign.servers:
                raise UsageError(
                    f"{path}: checkpoint {row.name!r}: no [servers.{server}]"
                    f"{suggest_name(server, campaign.servers)}"
                )
        if row.servers == ():
            raise UsageError(f"{path}: checkpoint {row.name!r} has no server: leave `servers` out for all")
        if not (campaign.profiles if row.profiles is None else row.profiles):
            raise UsageError(
                f"{path}: checkpoint {row.name!r} has no workload: name some, as profiles = "
                '["high-load", "low-load"]'
            )


# Flags of `loadgen bench` are not keys of a campaign's tables for these reasons.
_ELSEWHERE, _OF_THE_VERB = "cannot be used in a campaign", "is a flag of `loadgen campaign`"
_OF_ALL = "applies to the whole campaign: write it above the tables"
_OF_A_PROFILE = "belongs in a profile: all checkpoints get the same requests"
_NOT_HERE = {
    "help": _ELSEWHERE,
    **dict.fromkeys(list_profile_keys(*(set(Makes) - {Makes.REQUEST})), _OF_A_PROFILE),
    "profile": 'is written profiles = ["high-load", …]',
    "repeat": "is written repeats = N, above the tables",
    "seed": _OF_ALL,
    "fingerprint": _OF_ALL,
    "api_key_env": f"{_OF_THE_VERB}: a file cannot hold keys",
    "api_key_file": f"{_OF_THE_VERB}: a file cannot hold keys",
    **dict.fromkeys(("dry_run", "quiet", "run_dir", "resume"), _OF_THE_VERB),
    "every_input_len": _OF_A_PROFILE,
    "every_output_len": _OF_A_PROFILE,
    **dict.fromkeys(("print_request", "export_requests", "live_totals", "selftest"), _ELSEWHERE),
    **dict.fromkeys(("cluster", "shards", "otel", "prometheus", "receive_spans"), _ELSEWHERE),
    **dict.fromkeys(("disable_tqdm", "explain", "strict", "fail_on", "json"), _ELSEWHERE),
    **dict.fromkeys(("save_result", "save_detailed", "append_result"), _ELSEWHERE),
    **dict.fromkeys(("result_dir", "result_filename"), _ELSEWHERE),
}
_PATHS = ("model", "tokenizer", "server_python", "model_config", "image_dir")
_MERGED = ("server_env", "header")  # tables of which a checkpoint gives some more
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
Flags = Mapping[str, Any]


def overlay_flags(server: Flags, checkpoint: Flags) -> dict[str, Any]:
    """Return the server's flags with the checkpoint's over them; `server_env` and `header` tables merge."""
    merged = {**server, **checkpoint}
    for key in _MERGED:
        tables = [flags[key] for flags in (server, checkpoint) if isinstance(flags.get(key), dict)]
        if len(tables) == 2:
            merged[key] = {**tables[0], **tables[1]}
    return merged


def fill_variables(
    flags: Flags, may_read: Callable[[str], bool]
) -> tuple[dict[str, Any], set[str], set[str]]:
    """Return the flags with ${VARIABLE} and ${VARIABLE:-default} filled, and ~ at the start of paths.

    A variable without a value, or that may not be read, stays as written. Also returned are the names of
    those that are not set, as an empty one is not, and of those that may not be read.
    """
    missing, barred = set[str](), set[str]()

    def fill_match(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        set_value = os.environ.get(name)
        if set_value and not may_read(name):
            barred.add(name)
            return match[0]
        value = set_value or default
        if value is None:
            missing.add(name)
        return match[0] if value is None else value

    filled: dict[str, Any] = _fill_value(dict(flags), fill_match)
    for key in _PATHS:
        if isinstance(filled.get(key), str):
            filled[key] = os.path.expanduser(filled[key])
    return filled, missing, barred


def _fill_value(value: Any, fill_match: Callable[[re.Match[str]], str]) -> Any:
    """Fill in variables in a text, or in all texts of a list or table, however deep."""
    if isinstance(value, dict):
        return {key: _fill_value(item, fill_match) for key, item in value.items()}
    if isinstance(value, list):
        return [_fill_value(item, fill_match) for item in value]
    return _VARIABLE.sub(fill_match, value) if isinstance(value, str) else value


def make_arguments(flags: Flags, parser: argparse.ArgumentParser) -> list[str]:
    """Return the arguments of `loadgen bench` for these keys and values.

    Raises UsageError for an unknown key, with the nearest known one, a key that a campaign refuses, or a
    value of the wrong kind.
    """
    options = {
        option[2:].replace("-", "_"): (option, action)
        for action in parser._actions
        for option in action.option_strings
        if option.startswith("--")
    }
    own = [key for key, (_, action) in options.items() if action.dest not in _NOT_HERE]
    arguments: list[str] = []
    for key, value in flags.items():
        if key not in options:
            raise UsageError(f"unknown key {key!r}{suggest_name(key, own)}")
        option, action = options[key]
        if reason := _NOT_HERE.get(action.dest):
            raise UsageError(f"{key} {reason}")
        arguments += _make_words(option, action, value, f"{key} = {value!r}")
    return arguments


def _make_words(option: str, action: argparse.Action, value: Any, origin: str) -> Iterator[str]:
    """Yield the words of a flag and its value; of false --no-FLAG, or none. Raises UsageError."""
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise UsageError(f"{origin}: give true or false")
        switch = isinstance(action, argparse.BooleanOptionalAction)
        opposite = f"--{option[5:]}" if option.startswith("--no-") else f"--no-{option[2:]}"
        yield from [option] if value else [opposite] if switch else []
    elif isinstance(value, bool):
        raise UsageError(f"{origin}: give a value")
    elif action.nargs == "+":
        yield option
        yield from _list_items(value, origin)
    elif isinstance(action, argparse._AppendAction):
        yield from (f"{option}={item}" for item in _list_items(value, origin))
    elif isinstance(value, dict):
        yield f"{option}={json.dumps(value)}"
    elif isinstance(value, list):
        yield f"{option}={shlex.join(map(str, value))}"
    else:
        yield f"{option}={value}"


def _list_items(value: Any, origin: str) -> list[str]:
    """List a table's entries as NAME=VALUE, a list's strings or the one string; raises UsageError if none."""
    if isinstance(value, dict):
        return [f"{name}={item}" for name, item in value.items()]
    items = value if isinstance(value, list) else [value]
    if not items or not all(isinstance(item, str) for item in items):
        raise UsageError(f"{origin}: give a table, or a list of strings")
    return items


def hide_flag_secrets(flags: Flags) -> dict[str, Any]:
    """Return the flags with each value of a header, and each text that is or resembles a secret, masked."""
    shown: dict[str, Any] = Secrets.collect(tables=(flags,)).mask(dict(flags), names_too=True)
    if "header" in shown:
        pairs = flags["header"]
        names = list(pairs) if isinstance(pairs, dict) else [re.split("[=:]", str(pair))[0] for pair in pairs]
        shown["header"] = dict.fromkeys(names, HIDDEN)
    return shown
