"""Trace heads: what the first row of a trace shows of its format, and how such a trace is sent."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec

from loadgen.base.errors import UsageError
from loadgen.base.files import expand_path
from loadgen.base.json_lines import MOST_ROW_BYTES, OpenedFile
from loadgen.base.untrusted import NOT_JSON

FLAG = "--trace"
RECORDED, CLOSED = "recorded", "closed"
AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURSTGPT = ("Timestamp", "Request tokens", "Response tokens")
_HASHED = ("timestamp", "input_length", "output_length")
MOONCAKE = "mooncake"  # or another format of the same keys
TRACELAB_COLUMNS = (
    "id", "round_idx", "prefix_len", "input_len", "output_len", "arrival_time", "tool_wait_after_ms",
)  # fmt: skip
# The keys, or columns, of a first row, by which a format is known, the first that fits.
_OWN_KEYS = (
    ("otel", {"resourceSpans"}),
    ("otel", {"spans"}),
    ("otel", {"start_time", "end_time", "attributes"}),
    ("weka", {"requests"}),
    ("tracelab", {"round_index", "newly_append_tokens"}),
    ("tracelab", {*TRACELAB_COLUMNS}),
    ("workload", {"workload", "block_size"}),
    ("burstgpt", {*BURSTGPT}),
    ("azure-2023", {*AZURE}),
    ("bailian", {*_HASHED, "chat_id"}),
    ("bailian", {*_HASHED, "parent_chat_id"}),
    (MOONCAKE, {*_HASHED}),
)
_SENT_CLOSED = ("otel", "weka", "tracelab")  # their sessions are sent as such, unless --trace-replay is given
_OF_TIMES = ({"timestamp", "input_length"}, {AZURE[1]}, {BURSTGPT[1]})  # formats without sessions
_SUFFIXES = (".json", ".jsonl", ".json.gz", ".jsonl.gz")
_CLIENT_FILE = re.compile(r"(.*chunk-(\d+))-trace\.csv")
_KEY = re.compile(rb'"([A-Za-z_]+)"\s*:')
_HEAD_BYTES, _PIECE_BYTES = 4096, 1 << 20  # near the begin of JSON over many lines its own keys stand


def list_client_files(path: str) -> list[tuple[re.Match[str], Path]]:
    """List (match, path) of each chunk-N-trace.csv of ServeGen at a path or in it; [] if unreadable."""
    at = expand_path(path)
    try:
        names = sorted(at.iterdir()) if at.is_dir() else [at]
    except OSError:
        return []
    return [(match, name) for name in names if (match := _CLIENT_FILE.fullmatch(name.name))]


def list_files(path: str, flag: str) -> list[str]:
    """List the JSON files in a directory, sorted by name; any other path is returned alone, unread.

    Raises UsageError for a directory that has none or cannot be read.
    """
    at = expand_path(path)
    if not at.is_dir():
        return [path]
    try:
        names = sorted(name for name in os.listdir(at) if name.endswith(_SUFFIXES) and name[0] != ".")
    except OSError as error:
        raise UsageError(f"{flag} {path}: {error.strerror}: give a directory that can be read") from None
    if not names:
        raise UsageError(
            f"{flag} {path}: no file there ends in {', '.join(_SUFFIXES[:2])}: give one that has some"
        )
    return [str(Path(path) / name) for name in names]


def open_first(path: str) -> OpenedFile:
    """Open a trace, or the first file of a directory, which decides the format; raises UsageError."""
    return OpenedFile(path if list_client_files(path) else list_files(path, FLAG)[0], FLAG)


def read_first_row(file: OpenedFile) -> tuple[bytes, bytes]:
    """Read a file's first row that is not blank, stripped, and its first 4 KiB; raises UsageError.

    It is unpacked no further than that row.
    """
    read = bytearray()
    for piece in file.read_pieces(_PIECE_BYTES):
        read += piece if read else piece.lstrip()
        if (b"\n" in piece and b"\n" in read) or len(read) > MOST_ROW_BYTES:
            break
    return bytes(read).partition(b"\n")[0].strip(), bytes(read[:_HEAD_BYTES])


def _read_keys(file: OpenedFile) -> tuple[set[str], bool]:
    """Read the keys of a file's first row, or its columns; of JSON over many lines all of its first 4 KiB.

    Also returns whether it is such JSON. Raises UsageError for a damaged file.
    """
    row, head = read_first_row(file)
    if not row.startswith((b"{", b"[")):
        return {name.strip(' "') for name in row.decode("utf-8", "replace").split(",")}, False
    try:
        return set(msgspec.json.decode(row, type=dict[str, msgspec.Raw])), False
    except NOT_JSON:
        return {key.decode() for key in _KEY.findall(head)}, True


def _name_format(keys: Collection[str]) -> str:
    return next((name for name, own in _OWN_KEYS if own <= set(keys)), "")


def find_format(file: OpenedFile) -> str:
    """Return the format that a file's first row shows by its keys or columns; "" if none.

    JSON over many lines is otel's if it names spans in its first 4 KiB, else weka's.
    """
    keys, is_text = _read_keys(file)
    if is_text and "span_id" in keys:
        return "otel"
    return _name_format(keys) or ("weka" if is_text else "")


def has_trace_keys(keys: Collection[str]) -> bool:
    """Whether a row with these keys, or columns, is of a trace."""
    return bool(_name_format(keys)) or any(own <= set(keys) for own in _OF_TIMES)


def is_trace(path: str) -> bool:
    """Whether a path is a directory, or a file with a trace's first row or name; False if unreadable."""
    if expand_path(path).is_dir() or list_client_files(path):
        return True
    try:
        return has_trace_keys(_read_keys(OpenedFile(path, FLAG))[0])
    except UsageError:
        return False


def choose_replay(keys: Mapping[str, Any]) -> str:
    """Return how a trace is sent without --trace-replay, by a profile's keys: CLOSED or RECORDED.

    CLOSED for a format of sessions but `workload`. RECORDED where `self_timed` is False or it is unreadable.
    """
    name = keys.get("trace_format") or ""
    if keys.get("self_timed") is False:
        return RECORDED
    try:
        name = name or find_format(open_first(keys["trace"]))
    except UsageError:  # raised again where the file is read
        return RECORDED
    return CLOSED if name in _SENT_CLOSED else RECORDED
