"""Numbers, texts, JSON and files from outside: bounded, or not there."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over, read_tables
from loadgen.base import untrusted
from loadgen.server import engine_config

TABLES = read_tables("untrusted")

LONG: list[tuple[str, str, object]] = [
    ("read_text", "x" * 1000, "x" * 299 + "…"),
    ("parse_json_object", '{"a":' + "9" * 5000 + ',"b":2}', {"a": None, "b": 2}),
    ("parse_json_object", "[" * 200_000, {}),
    ("parse_json_object", '{"a":' * 200_000, {}),
]


NOT_KEPT: dict[Callable[[Any], object], list[Any]] = {
    untrusted.read_count: [(1 << 53) + 1, -1, True, 4.5, math.inf, math.nan, 10**400, "4", [1], None],
    untrusted.read_number: ["x", "nan", "-inf", 1e400, "9" * 400, 10**400, -0.1, False, {}, None],
    untrusted.read_digits: ["", "-1", "٣", "9" * 5000],
}


@loop_over(("read", "said"), [(read, said) for read, all_said in NOT_KEPT.items() for said in all_said])
def test_what_is_out_of_bounds_is_nothing(read: Callable[[Any], object], said: Any) -> None:
    assert read(said) is None


@loop_over(("read", "said", "kept"), [(name, *row) for name, rows in TABLES.items() for row in rows] + LONG)
def test_what_a_stranger_says_is_kept_within_bounds(read: str, said: Any, kept: object) -> None:
    if read in ("parse_json_object", "read_error_text"):
        said = said.encode("latin-1")
    assert getattr(untrusted, read)(said) == kept


def test_json_that_is_nested_too_deep_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="too deep"):
        untrusted.parse_json(b"[" * 200_000 + b"]" * 200_000)


def test_a_files_bytes_are_read_up_to_a_size(tmp_path: Path) -> None:
    place = tmp_path / "a"
    place.write_bytes(b"x" * 2048)
    assert untrusted.read_file_bytes(place, 2048) == b"x" * 2048
    assert untrusted.read_file_head(place, 5) == b"xxxxx"
    with pytest.raises(OSError, match="larger than 1 KiB"):
        untrusted.read_file_bytes(place, 1024)


@loop_over("kind", ["fifo", "directory", "device", "missing", "long", "null byte", "link"])
def test_what_is_no_regular_file_is_not_opened(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "a"
    if kind == "fifo":
        os.mkfifo(place)
    elif kind == "link":
        os.mkfifo(tmp_path / "b")
        place.symlink_to(tmp_path / "b")
    elif kind == "directory":
        place.mkdir()
    elif kind == "device":
        place = Path(os.devnull)
    elif kind == "long":
        place = tmp_path / ("x" * 10_000)
    elif kind == "null byte":
        place = tmp_path / "a\0b"
    with pytest.raises(OSError, match=r"regular file|No such file|too long|Invalid argument"):
        untrusted.read_file_bytes(place, 100)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc")
def test_a_file_of_proc_is_not_read() -> None:
    assert untrusted.read_file_head(Path("/proc/self/stat"), 100) == b""


@loop_over(("size", "left_out"), [(0, 0), (10, 0), (64, 0), (70, 6), (1000, 936)])
def test_a_log_is_its_beginning_and_its_end(
    tmp_path: Path, size: int, left_out: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_config, "_MOST_BYTES", 32)
    whole = "".join(chr(97 + i % 26) for i in range(size))
    log = tmp_path / "server.log"
    log.write_text(whole, "utf-8")
    gap = f"\n… {left_out} bytes left out …\n" if left_out else ""
    assert engine_config.read_log(log) == (
        whole[:32] + gap + whole[-32:] if size > 32 and left_out else whole
    )
    assert engine_config.read_beginning(log) == whole[:32]


def test_a_log_that_was_removed_is_said_and_empty(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    assert engine_config.read_beginning(log) == ""
    assert "was removed" in engine_config.read_log(log)


def test_a_line_has_no_line_ends_and_is_cut_visibly() -> None:
    assert untrusted.read_line(" a\n\tb \x1b ") == "a b \ufffd"
    assert untrusted.read_line("x y " * 10, 8) == "x y x y…"
