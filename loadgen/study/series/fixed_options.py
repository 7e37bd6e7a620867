"""Fixed options: a digest of all that the runs of a sweep or a search have in common, to resume it by."""

from __future__ import annotations

import hashlib

import msgspec
from msgspec.structs import asdict

from loadgen.run.options import Options

# What may change before work is resumed: it changes no figure. Of secrets there is no digest on a disk.
_FREE = {
    "run_dir", "quiet", "seed", "explain", "strict", "layout", "headers", "api_key_env", "api_key_file",
    "ready_check_timeout_s", "metadata", "label", "save_requests",
}  # fmt: skip


def digest(options: Options, *more: object) -> str:
    """SHA-256 of the options that change a figure, and of more that JSON can hold."""
    kept = {name: value for name, value in asdict(options).items() if name not in _FREE}
    return hashlib.sha256(msgspec.json.encode([kept, *more], order="sorted", enc_hook=str)).hexdigest()
