"""Table: all settings, and what is made of their rows: parsers, and which keys make what."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from loadgen.engines.engines import LAUNCHED
from loadgen.settings import setting
from loadgen.settings.data_settings import DataKeys, ImageKeys, LengthKeys, TextKeys, TraceKeys, VariationKeys
from loadgen.settings.load_settings import CancelKeys, ClassKeys, LoadKeys, NameKeys, SeedOptions, ShapeKeys
from loadgen.settings.request_settings import FigureKeys, RequestKeys
from loadgen.settings.run_settings import (
    BY_ENVIRONMENT,
    RECEIVED,
    AroundOptions,
    CommandFlags,
    OutputOptions,
    SendOptions,
    StopOptions,
    TelemetryOptions,
)
from loadgen.settings.server_settings import (
    CallOptions,
    KeyOptions,
    LaunchOptions,
    MachineOptions,
    ServerKeys,
    TargetOptions,
    TrustOptions,
)
from loadgen.settings.session_settings import SessionKeys
from loadgen.settings.setting import Makes, SettingRow, list_rows
from loadgen.settings.shard_settings import ShardOptions


class ProfileKeys(
    FigureKeys,
    RequestKeys,
    LoadKeys,
    LengthKeys,
    NameKeys,
    ImageKeys,
    DataKeys,
    VariationKeys,
    TextKeys,
    TraceKeys,
    CancelKeys,
    ClassKeys,
    ShapeKeys,
    SessionKeys,
    frozen=True,
    defer_build=True,
):
    """The keys of a profile that are flags too; as pydantic does, those of the last base come first."""


@dataclass(frozen=True)
class RunOptions(
    TargetOptions,
    KeyOptions,
    TrustOptions,
    SeedOptions,
    SendOptions,
    AroundOptions,
    StopOptions,
    OutputOptions,
    ShardOptions,
    TelemetryOptions,
    MachineOptions,
):
    """The options of a run."""


PROFILE_KEYS = ProfileKeys.__bases__[::-1]  # in the order in which a profile is stored
SOURCE_KEYS = (TraceKeys, SessionKeys, DataKeys)  # of requests: without them, they are random prompts
OPTIONS = RunOptions.__bases__
FLAGS = (CommandFlags, LaunchOptions, ServerKeys)
TABLE = list_rows(*FLAGS, *OPTIONS, *PROFILE_KEYS, CallOptions)
# argparse needs to know more of a few flags, and their other spellings.
_FURTHER: dict[str, dict[str, Any]] = {
    "engine": {"choices": LAUNCHED},
    "goodput": {"nargs": "+"},
    "otel": {"nargs": "?", "const": BY_ENVIRONMENT},
    "receive_spans": {"nargs": "?", "const": RECEIVED},
}
_ALSO = {"skip_chat_template": ["--custom-skip-chat-template"]}


def list_profile_keys(*makes: Makes) -> tuple[str, ...]:
    """List the keys of a profile whose settings make one of these (load, requests, …), in order."""
    return tuple(row.name for row in list_rows(*PROFILE_KEYS) if row.makes in makes)


def list_flags(group: str, rows: Iterable[SettingRow] = TABLE) -> list[SettingRow]:
    """List the settings that have a flag in a group of --help, in the order of its lines."""
    return sorted((row for row in rows if row.group == group), key=lambda row: row.rank)


def add_flags(container: argparse._ActionsContainer, rows: Iterable[SettingRow]) -> None:
    """Add the flags of these settings to an argparse parser or group."""
    for row in rows:
        columns: dict[str, Any] = {"metavar": row.metavar, "action": row.action, "type": row.read}
        columns["nargs"] = "+" if row.action == "extend" else None
        if bool in row.kinds:
            named_off = row.option.startswith(("--no-", "--disable-"))
            switch = "store_false" if named_off else argparse.BooleanOptionalAction
            columns["action"] = row.action or ("store_true" if row.default is False else switch)
        elif row.read is None:
            columns["type"] = next((kind for kind in (float, int) if kind in row.kinds), None)
            literals = [kind for kind in row.kinds if get_origin(kind) is Literal]
            columns["choices"] = [word for kind in literals for word in get_args(kind) if word] or None
        given = {name: value for name, value in columns.items() if value is not None}
        given |= _FURTHER.get(row.name, {})
        spellings = _ALSO.get(row.name, ())
        container.add_argument(row.option, *spellings, dest=row.dest, help=row.help, **given)


def add_groups(
    parser: argparse._ActionsContainer,
    named: Iterable[str] = setting.GROUP_ORDER,
    rows: Iterable[SettingRow] = TABLE,
) -> None:
    """Add the flags of these groups of --help to a parser, each group with its title."""
    every = tuple(rows)
    for title in named:
        add_flags(parser.add_argument_group(title), list_flags(title, every))
