"""Printing never raises, whatever the stream is, and says whether the words went out."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TextIO

import pytest

from builders.loops import loop_over
from loadgen import cli
from loadgen.base.errors import ExitCode
from loadgen.report.printing import encodable, flushed, printed


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
    assert printed(text, stream(raw, encoding)) is True
    assert raw.taken == taken


def test_an_unusable_encoding_is_taken_for_ascii() -> None:
    assert encodable("é" * 99, "idna") == "\\xe9" * 99
    assert encodable("é", "no-such-encoding") == "\\xe9"
    assert encodable("é", None) == "é"


@loop_over(
    "gone",
    [
        pytest.param(None, id="absent"),
        pytest.param(closed(), id="closed"),
        pytest.param(stream(Raw(BrokenPipeError(errno.EPIPE, "Broken pipe"))), id="broken pipe"),
        pytest.param(stream(Raw(OSError(errno.ENOSPC, "No space left on device"))), id="full"),
        pytest.param(stream(Raw(OSError(errno.EIO, "Input/output error"))), id="its terminal is gone"),
        pytest.param(stream(Raw(ConnectionResetError())), id="reset"),
    ],
)
def test_a_stream_that_is_gone_is_told_and_nothing_raises(gone: TextIO | None) -> None:
    assert printed("words", gone) is False


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_device_is_told_by_print_and_flush() -> None:
    file = open("/dev/full", "w", encoding="utf-8")  # noqa: SIM115 - to close it raises
    assert printed("words", file) is False
    assert flushed(file) is False
    os.close(file.fileno())
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.close()


def test_a_stream_without_an_encoding_and_one_that_is_absent() -> None:
    text = io.StringIO()
    assert printed("é", text, end="") is True
    assert text.getvalue() == "é"
    assert flushed(None) is True
    assert flushed(closed()) is False


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_command_without_its_streams_ends_with_its_own_exit_code(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, name, None)
    assert cli.main(["no-such-verb"]) == ExitCode.USAGE


@pytest.mark.parametrize(
    ("code", "well", "ends"),
    [(0, True, 0), (0, False, ExitCode.UNWRITTEN), (3, False, 3), (130, False, 130)],
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
    monkeypatch.setattr(cli, "flushed", lambda stream: well)
    monkeypatch.setattr(os, "_exit", end)
    with pytest.raises(Ended, match=rf"^{int(ends)}$"):
        cli.run()
