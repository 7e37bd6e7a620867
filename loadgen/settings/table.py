"""Table: all settings, and what is made of their rows: parsers, and which keys make what."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import Any

from loadgen.settings import setting
from loadgen.settings.data_settings import DataKeys
from loadgen.settings.image_settings import ImageKeys
from loadgen.settings.load_settings import CancelKeys, ClassKeys, LoadKeys, NameKeys, SeedOptions, ShapeKeys
from loadgen.settings.prompt_settings import LengthFlags, LengthKeys, TextKeys, VariationKeys
from loadgen.settings.request_settings import FigureKeys, RequestKeys
from loadgen.settings.run_settings import (
    AroundOptions,
    CommandFlags,
    FingerprintOptions,
    OutputOptions,
    SendOptions,
    StopOptions,
)
from loadgen.settings.server_settings import (
    AddressFlags,
    CallOptions,
    KeyOptions,
    LaunchRows,
    MachineOptions,
    ServerKeys,
    TargetOptions,
    TrustOptions,
)
from loadgen.settings.session_settings import SessionKeys
from loadgen.settings.setting import Makes, Setting, Subject
from loadgen.settings.shard_settings import ClusterOptions, ShardOptions
from loadgen.settings.telemetry_settings import PowerOptions, TelemetryOptions
from loadgen.settings.trace_settings import TraceKeys


def join_rows(*subjects: Subject) -> tuple[Setting, ...]:
    """List the settings of several subjects, in order."""
    return tuple(row for subject in subjects for row in subject.rows)


# In the order in which a profile is stored.
PROFILE_KEYS: tuple[Subject, ...] = (
    *(SessionKeys, ShapeKeys, ClassKeys, CancelKeys, TraceKeys, TextKeys, VariationKeys, DataKeys),
    *(ImageKeys, NameKeys, LengthKeys, LoadKeys, RequestKeys, FigureKeys),
)
# Those of sources of requests: without them, requests are random prompts.
SOURCE_KEYS: tuple[Subject, ...] = (TraceKeys, SessionKeys, DataKeys)
OPTIONS: tuple[Subject, ...] = (
    *(TargetOptions, KeyOptions, TrustOptions, SeedOptions, SendOptions, AroundOptions),
    *(StopOptions, OutputOptions, PowerOptions, ShardOptions, ClusterOptions, TelemetryOptions),
    *(FingerprintOptions, MachineOptions),
)
FLAGS: tuple[Subject, ...] = (AddressFlags, LaunchRows, ServerKeys, LengthFlags, CommandFlags)
TABLE = join_rows(*FLAGS, *OPTIONS, *PROFILE_KEYS, CallOptions)


# The lengths of answers that are a data set's own: --output-len is each of them.
ANSWER_LENS = tuple(row.name for row in join_rows(*PROFILE_KEYS) if row.answer_len)
# What the annotations of keys name, by its name in their modules.
ANNOTATED = {
    name: value
    for subject in PROFILE_KEYS
    for name, value in vars(sys.modules[subject.__module__]).items()
    if not name.startswith("_")
}
# The keys that give times at which requests, or sessions, begin.
ARRIVALS = tuple(row.name for row in join_rows(*PROFILE_KEYS) if row.arrivals)


def list_profile_keys(*makes: Makes) -> tuple[str, ...]:
    """List the keys of a profile whose settings make one of these (load, requests, …), in order."""
    return tuple(row.name for row in join_rows(*PROFILE_KEYS) if row.makes in makes)


def list_flags(group: str, rows: Iterable[Setting] = TABLE) -> list[Setting]:
    """List the settings that have a flag in a group of --help, in the order of its lines."""
    return sorted((row for row in rows if row.group == group), key=lambda row: row.rank)


def add_flags(container: argparse._ActionsContainer, rows: Iterable[Setting]) -> None:
    """Add the flags of these settings to an argparse parser or group."""
    for row in rows:
        columns = {
            "action": row.action, "nargs": row.nargs, "choices": row.choices, "metavar": row.metavar,
            "type": row.read, "const": row.const,
        }  # fmt: skip
        given: dict[str, Any] = {name: value for name, value in columns.items() if value is not None}
        container.add_argument(row.option, *row.also, dest=row.dest, help=row.help, **given)


def add_groups(
    parser: argparse._ActionsContainer,
    named: Iterable[str] = setting.GROUP_ORDER,
    rows: Iterable[Setting] = TABLE,
) -> None:
    """Add the flags of these groups of --help to a parser, each group with its title."""
    every = tuple(rows)
    for title in named:
        add_flags(parser.add_argument_group(title), list_flags(title, every))
