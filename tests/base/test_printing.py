"""Printing never raises, whatever the stream is, and says whether the words went out; JSON is one object."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import pytest

from builders.loops import loop_over, loop_over_named
from loadgen import cli
from loadgen.base.errors import ExitCode, UsageError
from loadgen.base.printing import (
    Colour,
    Mark,
    Screen,
    escape_unencodable,
    flush_standard_streams,
    flush_stream,
    leave_plain,
    print_one_object,
    print_text,
    refuse_without_result,
)


class Raw(io.RawIOBase):
    """Takes bytes, or raises this."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.taken = error, b""

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        if self.error is not None:
            raise self.error
        self.taken += bytes(data)  # type: ignore[call-overload]
        return len(bytes(data))  # type: ignore[call-overload]


def stream(raw: Raw, encoding: str = "utf-8", errors: str = "strict") -> TextIO:
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, errors=errors, write_through=True)


def closed() -> TextIO:
    text = stream(Raw())
    text.close()
    return text


@loop_over(
    ("encoding", "text", "taken"),
    [
        ("utf-8", "3 × fast", "3 × fast\n".encode()),
        ("ascii", "3 × fast", b"3 \\xd7 fast\n"),
        ("latin-1", "3 × „fast“", b"3 \xd7 \\u201efast\\u201c\n"),
        ("utf-8", "m\ud800", b"m\\ud800\n"),
        ("ascii", "\U0001f600", b"\\U0001f600\n"),
        ("utf-16-le", "é", "é\n".encode("utf-16-le")),
    ],
)
def test_what_an_encoding_lacks_is_written_as_its_escape(encoding: str, text: str, taken: bytes) -> None:
    raw = Raw()
    assert print_text(text, stream(raw, encoding)) is True
    assert raw.taken == taken


def test_an_unusable_encoding_is_taken_for_ascii() -> None:
    assert escape_unencodable("é" * 99, "idna") == "\\xe9" * 99
    assert escape_unencodable("é", "no-such-encoding") == "\\xe9"
    assert escape_unencodable("é", None) == "é"


@loop_over_named(
    "gone",
    {
        "absent": None,
        "closed": closed(),
        "broken pipe": stream(Raw(BrokenPipeError(errno.EPIPE, "Broken pipe"))),
        "full": stream(Raw(OSError(errno.ENOSPC, "No space left on device"))),
        "its terminal is gone": stream(Raw(OSError(errno.EIO, "Input/output error"))),
        "reset": stream(Raw(ConnectionResetError())),
    },
)
def test_a_stream_that_is_gone_is_told_and_nothing_raises(gone: TextIO | None) -> None:
    assert print_text("words", gone) is False


def test_a_stream_without_an_encoding_and_one_that_is_absent() -> None:
    text = io.StringIO()
    assert print_text("é", text, end="") is True
    assert text.getvalue() == "é"
    assert flush_stream(None) is True
    assert flush_stream(closed()) is False


@pytest.mark.parametrize(("error", "whole"), [(OSError(28, "full"), False), (BrokenPipeError(), True)])
def test_a_text_that_an_unbuffered_stream_lost_is_known(
    error: OSError, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unbuffered(io.StringIO):
        def write(self, text: str) -> int:
            raise error

    monkeypatch.setattr(sys, "stdout", Unbuffered())
    assert print_text("lost", sys.stdout) is False
    assert flush_standard_streams() is whole


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_command_without_its_streams_ends_with_its_own_exit_code(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, name, None)
    assert cli.main(["no-such-verb"]) == ExitCode.USAGE


@pytest.mark.parametrize(
    ("code", "well", "ends"), [(0, True, 0), (0, False, ExitCode.UNWRITTEN), (3, False, 3), (130, False, 130)]
)
def test_lost_output_is_an_exit_code_where_there_is_no_other(
    code: int, well: bool, ends: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ended(Exception):
        pass

    def end(with_code: int) -> None:
        raise Ended(with_code)

    monkeypatch.setattr(cli.gc, "disable", lambda: None)  # type: ignore[attr-defined]
    monkeypatch.setattr(cli, "main", lambda: code)
    monkeypatch.setattr(cli, "flush_standard_streams", lambda: well)
    monkeypatch.setattr(os, "_exit", end)
    with pytest.raises(Ended, match=rf"^{int(ends)}$"):
        cli.run()


RUN = Path(__file__).parents[1] / "data" / "run_directories" / "smoke"
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
GOOD, BAD = Mark("VALID", Colour.GOOD, bold=True), Mark("a long doubt", Colour.BAD)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@loop_over(("columns", "width"), [("80", 80), ("100", 100), ("120", 120), ("300", 120), ("20", 40)])
def test_text_is_as_wide_as_the_terminal_and_80_in_a_file(
    columns: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert Screen.from_stream(Terminal()).width == width
    assert Screen.from_stream(io.StringIO()).width == 80
    assert Screen.from_stream(None).width == 80


@loop_over(
    ("environment", "coloured"),
    [
        ({"TERM": "xterm-256color"}, True),
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": ""}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
        ({}, False),
    ],
)
def test_colour_is_for_terminals_that_have_it_and_users_who_want_it(
    environment: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    (line,) = Screen.from_stream(Terminal()).paint(["verdict: VALID"], [GOOD])
    assert (line != "verdict: VALID") is coloured
    assert ESCAPE.sub("", line) == "verdict: VALID"
    assert Screen.from_stream(io.StringIO()).ink is leave_plain


@pytest.mark.parametrize("colour", Colour)
def test_each_colour_is_readable_on_white_and_on_black(colour: Colour) -> None:
    from rich.color import Color

    triplet = Color.parse(colour).get_truecolor()
    linear = [((part / 255 + 0.055) / 1.055) ** 2.4 for part in (triplet.red, triplet.green, triplet.blue)]
    light = sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    assert min(1.05 / (light + 0.05), (light + 0.05) / 0.05) > 3.7


def brackets(text: str, mark: Mark) -> str:
    return f"<{text}>"


@loop_over(
    ("lines", "marks", "shown"),
    [
        (["verdict: VALID"], [GOOD], ["verdict: <VALID>"]),
        (["verdict: INVALID; VALID; VALID"], [GOOD], ["verdict: INVALID; <VALID>; VALID"]),
        (["it has a", "  long doubt; fix"], [BAD], ["it has <a>", "  <long doubt>; fix"]),
        (["a long doubt: VALID"], [GOOD, BAD], ["<a long doubt>: <VALID>"]),
        (["a long doubt"], [BAD, Mark("long", Colour.GOOD)], ["<a long doubt>"]),
        (["nothing of it", "here"], [GOOD, BAD, Mark("", Colour.BAD)], ["nothing of it", "here"]),
        ([], [GOOD], []),
    ],
)
def test_a_mark_is_its_first_occurrence_as_whole_words(
    lines: list[str], marks: list[Mark], shown: list[str]
) -> None:
    assert Screen(ink=brackets).paint(lines, marks) == shown
    assert Screen().paint(lines, marks) == lines


def on_a_terminal(columns: int, **environment: str) -> str:
    """What `loadgen report` of a stored run writes on a terminal of that width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    left_out = ("COLUMNS", "NO_COLOR")
    inherited = {name: value for name, value in os.environ.items() if name not in left_out}
    with subprocess.Popen(
        [sys.executable, "-m", "loadgen", "report", str(RUN)],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        env={**inherited, "TERM": "xterm", **environment},
    ):
        os.close(theirs)
        parts = []
        with contextlib.suppress(OSError):  # the terminal's other end is closed
            while part := os.read(ours, 1 << 16):
                parts.append(part)
    os.close(ours)
    return b"".join(parts).decode().replace("\r\n", "\n")


@pytest.mark.whole
@pytest.mark.parametrize("columns", [60, 80, 100])
def test_on_a_terminal_a_report_has_its_width_and_colours(columns: int) -> None:
    shown = on_a_terminal(columns)
    lines = [ESCAPE.sub("", line) for line in shown.splitlines() if ESCAPE.search(line)]
    assert [line.partition(":")[0] for line in lines[:2]] == ["SIMULATED", "verdict"]
    prose = [line for line in shown.splitlines() if line.startswith(("prompts:", "requests:", "client:"))]
    assert prose
    assert columns - 30 < max(map(len, prose)) <= columns
    assert ESCAPE.sub("", shown) == on_a_terminal(columns, NO_COLOR="1")


@pytest.mark.parametrize(
    ("results", "printed"),
    [([], None), ([{"a": 1}], {"a": 1}), ([{"a": 1}, {"b": 2}], {"runs": [{"a": 1}, {"b": 2}]})],
)
def test_results_are_one_object(
    capsys: pytest.CaptureFixture[str], results: list[dict[str, Any]], printed: dict[str, Any] | None
) -> None:
    with print_one_object(True) as kept:
        print("a table")
        kept += results
    out, error = capsys.readouterr()
    assert error == "a table\n"
    assert (json.loads(out) if out else None) == printed


def test_an_error_prints_no_object(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(act: Callable[[], None]) -> None:
        with print_one_object(True) as kept:
            kept.append({"a": 1})
            act()

    def act() -> None:
        raise UsageError("no")

    with pytest.raises(UsageError, match="no"):
        fail(act)
    assert capsys.readouterr().out == ""


def test_a_flag_that_makes_no_result_is_refused() -> None:
    refuse_without_result(False, {"--dry-run": True})
    refuse_without_result(True, {"--dry-run": False})
    with pytest.raises(UsageError, match="--json prints a result, and --dry-run makes none: leave out one"):
        refuse_without_result(True, {"--example": False, "--dry-run": True})
