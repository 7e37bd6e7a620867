"""Answer settings: what a checkpoint must hold to be taken, what the machine costs, and where scores are."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from loadgen.base.errors import UsageError
from loadgen.base.parsing import number_between, suggest_name
from loadgen.base.text import quote_value
from loadgen.figures.objectives import Objective, parse_objectives
from loadgen.settings.setting import Makes, Setting, list_rows

ANSWER = "the answer: which checkpoint to take"  # of --help
_UNITS = {"mib": 2**20, "gib": 2**30, "tib": 2**40, "mb": 10**6, "gb": 10**9, "tb": 10**12, "": 2**30}
_SIZE = re.compile(r"(\d+(?:\.\d*)?)\s*([a-z]*)", re.ASCII | re.IGNORECASE)

_NATS, _PRICES = (1e-6, 100.0), (1e-6, 1e6)  # least and most of a KL, and of a price an hour

# fmt: off
_asked = partial(Setting, Makes.NOTHING, group=ANSWER)


@dataclass(frozen=True)
class AnswerSettings:
    """The settings of the answer: flags of `compare`, `campaign` and `report`, and keys of `[answer]`."""

    fits: Annotated[str | None, _asked("take only what fits this memory, as 16GiB (compare: alone, a "
        "table)", metavar="SIZE")] = None
    slo: Annotated[str | None, _asked("take only what meets these objectives, as 'tpot p95 < 50ms'",
        metavar="TEXT")] = None
    max_kl: Annotated[float | None, _asked("take only what is at most N nats a token from the reference",
        read=number_between(*_NATS), metavar="KL")] = None
    price_per_hour: Annotated[float | None, _asked("price of the machine, for the cost of a million tokens",
        read=number_between(*_PRICES), metavar="PRICE")] = None
    lm_eval: Annotated[tuple[str, ...], _asked("scores of a checkpoint by lm-evaluation-harness (repeatable)",
        metavar="CHECKPOINT=FILE", action="append")] = ()
# fmt: on


class AnswerRequest(msgspec.Struct, frozen=True):
    """What is asked of an answer; None, () or {} where it is not given."""

    fits_bytes: float | None = None
    slo: tuple[Objective, ...] = ()
    max_kl: float | None = None
    price_per_hour: float | None = None
    lm_eval: Mapping[str, str] = {}  # the file of scores, by checkpoint

    def change(self, values: Mapping[str, Any]) -> AnswerRequest:
        """Return the request with constraints as if `values` were typed too; raises UsageError."""
        typed = AnswerRequest.read(values)
        names = {"fits": "fits_bytes", "slo": "slo", "max_kl": "max_kl"}
        return replace(self, **{names[key]: getattr(typed, names[key]) for key in values})

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> AnswerRequest:
        """Read the settings from a table by their names; raises UsageError for a wrong value.

        `lm_eval` is a table, or a list of CHECKPOINT=FILE.
        """
        known = [row.name for row in list_rows(AnswerSettings)]
        if unknown := next((name for name in values if name not in known), ""):
            raise UsageError(f"the answer has no setting {unknown!r}{suggest_name(unknown, known)}")
        size, slo = values.get("fits"), values.get("slo")
        return cls(
            None if size is None else parse_size(str(size)),
            parse_objectives(str(slo)) if slo else (),
            _read_amount("--max-kl", values.get("max_kl"), _NATS),
            _read_amount("--price-per-hour", values.get("price_per_hour"), _PRICES),
            _read_files(values.get("lm_eval") or ()),
        )


def read_answer_flags(given: argparse.Namespace, recorded: Mapping[str, Any]) -> AnswerRequest:
    """Read the answer's settings of a command line, each over the campaign's own; raises UsageError."""
    flags = {row.name: getattr(given, row.dest) for row in list_rows(AnswerSettings)}
    return AnswerRequest.read(
        {**recorded, **{name: value for name, value in flags.items() if value not in (None, "")}}
    )


def describe_constraints(values: Mapping[str, Any]) -> str:
    """Write constraints as the flags that set them."""
    options = {row.name: row.option for row in list_rows(AnswerSettings)}
    return " ".join(f"{options[key]} {shlex.quote(_format_value(value))}" for key, value in values.items())


def _format_value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def describe_flags(flags: Mapping[str, Any]) -> str:
    """Write keys of a campaign's file as the flags of `loadgen bench` that they set."""
    words = []
    for key, value in flags.items():
        text = json.dumps(value) if isinstance(value, dict | list) else _format_value(value)
        name = f"{'no-' if value is False else ''}{key.replace('_', '-')}"
        words.append(f"--{name}" if isinstance(value, bool) else f"--{name}={shlex.quote(text)}")
    return " ".join(words)


def parse_size(text: str) -> float:
    """Parse bytes of memory, as 16GiB, 24 GB or 16, which is GiB; raises UsageError."""
    match = _SIZE.fullmatch(text.strip())
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None or not float(match[1]):
        raise UsageError(f"--fits {quote_value(text)}: give a size of memory, as 16GiB")
    return float(match[1]) * unit


def is_size(text: str) -> bool:
    """Whether a word is a size of memory, as 16GiB."""
    match = _SIZE.fullmatch(text.strip())
    return match is not None and match[2].lower() in _UNITS


def _read_amount(flag: str, value: Any, bounds: tuple[float, float]) -> float | None:
    """Return a number within bounds, both included, or None if not given; raises UsageError."""
    if value is None:
        return None
    least, most = bounds
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise UsageError(f"{flag} {value}: give a number from {least:g} to {most:.0f}")
    return float(value)


def _read_files(given: Any) -> dict[str, str]:
    """Read files of scores by checkpoint, from a table or CHECKPOINT=FILE entries; raises UsageError."""
    if isinstance(given, Mapping):
        return {str(name): str(file) for name, file in given.items()}
    files = {}
    for entry in given:
        name, sign, file = str(entry).partition("=")
        if not (name and sign and file):
            raise UsageError(f"--lm-eval {quote_value(entry)}: write CHECKPOINT=FILE")
        files[name] = file
    return files
