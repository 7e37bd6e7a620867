"""The end of a server's log, as it is shown when the server ends."""

from __future__ import annotations

import os
from pathlib import Path

from builders.loops import loop_over
from loadgen_servers.launch.spec import Command
from loadgen_servers.process.running import Running


def kept(log: Path) -> Running:
    """Enough of one to read its log."""
    return Running(Command((), {}), 0, log, 0.0, None)  # type: ignore[arg-type]


@loop_over(
    ("written", "shown"),
    [
        (b"", []),
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\n\n   \ntwo", ["one", "two"]),
        (b"windows\r\nlines\r\n", ["windows", "lines"]),
        (b"load:   0%|\rload:  50%|\rload: 100%|#\nready", ["load: 100%|#", "ready"]),
        (b"\x1b[1;32mINFO\x1b[0m up\x1b[K\x1b]0;title\x07!", ["INFO up!"]),
        (b"tab\there", ["tab here"]),
        (b"\x00\x01\xff\xfe", ["\ufffd" * 4]),
        (b"half \xe2\x82", ["half \ufffd"]),
        (b"x" * 300, ["x" * 199 + "…"]),
        (b"".join(b"%d\n" % i for i in range(100)), [str(i) for i in range(85, 100)]),
    ],
)
def test_the_tail_is_printable_whatever_the_log_holds(
    tmp_path: Path, written: bytes, shown: list[str]
) -> None:
    log = tmp_path / "log"
    log.write_bytes(written)
    assert kept(log).tail() == shown


def test_of_a_large_log_only_the_end_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        file.truncate(200 << 20)
        file.seek(0, os.SEEK_END)
        file.write(b"\nlast words\n")
    assert kept(log).tail(1) == ["last words"]


def test_of_one_endless_line_the_end_counts_as_a_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(os.urandom(1 << 20).replace(b"\n", b"") + b"\rend")
    assert kept(log).tail() == ["end"]


def test_a_log_that_is_not_there_has_no_tail(tmp_path: Path) -> None:
    assert kept(tmp_path / "none").tail() == []


def test_random_bytes_are_printable(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(os.urandom(1 << 16))
    shown = kept(log).tail(1000)
    assert all(line.isprintable() and 0 < len(line) <= 200 for line in shown)
