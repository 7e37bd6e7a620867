"""Fixed options: a digest of all that the runs of a sweep or a search have in common, to resume it by."""

from __future__ import annotations

import hashlib

import msgspec
from msgspec.structs import asdict

from loadgen.run.options import TABLE, Options

# These change no figure. Of secrets there is no digest on a disk.
_FREE = {row.name for row in TABLE if row.resumes}


def digest(options: Options, *more: object) -> str:
    """SHA-256 of the options that change a figure, and of more that JSON can hold."""
    kept = {name: value for name, value in asdict(options).items() if name not in _FREE}
    return hashlib.sha256(msgspec.json.encode([kept, *more], order="sorted", enc_hook=str)).hexdigest()
