"""Series options: which options of `loadgen bench` a series of runs refuses, and which it is resumed by."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec
from msgspec.structs import asdict

from loadgen.base.errors import UsageError
from loadgen.run.options import TABLE, Options, is_given

# These change no figure. Of secrets there is no digest on a disk.
_FREE = {row.name for row in TABLE if row.resumes}


def refuse_flags(options: Options, series: str, own: Mapping[str, tuple[bool, str]]) -> None:
    """Raises UsageError for a flag that does not apply to `series`, with what to do instead.

    `own` has more of them: whether each was given, and the advice.
    """
    rows = [row for row in TABLE if row.series]
    advice = {**own, **{row.option: (is_given(options, row), row.series) for row in rows}}
    for flag, (given, what_to_do) in advice.items():
        if given:
            raise UsageError(f"{flag} does not apply to {series}: {what_to_do}")


def digest_options(options: Options, *more: object) -> str:
    """SHA-256 of the options that change a figure, and of more that JSON can hold."""
    kept = {name: value for name, value in asdict(options).items() if name not in _FREE}
    return hashlib.sha256(msgspec.json.encode([kept, *more], order="sorted", enc_hook=str)).hexdigest()
