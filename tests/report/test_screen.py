"""Screens: how wide text is shown, and in which colours."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from builders.loops import loop_over
from loadgen.base.text import clean_text
from loadgen.report.screen import Colour, Mark, Screen, no_ink

RUN = Path(__file__).parents[1] / "data" / "run_directories" / "format-1"
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
    assert Screen.of(Terminal()).width == width
    assert Screen.of(io.StringIO()).width == 80
    assert Screen.of(None).width == 80


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
    (line,) = Screen.of(Terminal()).painted(["verdict: VALID"], [GOOD])
    assert (line != "verdict: VALID") is coloured
    assert ESCAPE.sub("", line) == "verdict: VALID"
    assert Screen.of(io.StringIO()).ink is no_ink


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
    assert Screen(ink=brackets).painted(lines, marks) == shown
    assert Screen().painted(lines, marks) == lines


def test_a_servers_own_escapes_are_not_shown() -> None:
    assert clean_text("\x1b[31mred") == "\ufffd[31mred"


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
