"""Log file: the lines of a log, packed by gzip or not, one after another and never all at once.

Of a directory they are the rows of its files of JSON.
"""

from __future__ import annotations

import gzip
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

from loadgen.base.errors import UsageError
from loadgen.base.files import expand_path
from loadgen.base.json_lines import GZIP, MOST_ROW_BYTES, NO_TEXT, Lines
from loadgen.base.untrusted import open_unblocked
from loadgen.features.traces.trace_formats import open_rows

_BOM = "\ufeff"
_MOST_HEAD_BYTES = 1 << 20
CUT = "its last line, which the log ends within"


class LogFault(UsageError):
    """What is wrong with a log; `is_cut` if it is its last row, which is not written to its end."""

    is_cut = False


class LogFile:
    """A log that is read line by line.

    Raises UsageError if it cannot be opened, is no file, empty, packed by another program or UTF-16.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._unended = 0  # the number of a last line without a line feed, if there are others
        self._rows = open_rows(path, "LOG") if expand_path(path).is_dir() else None
        if self._rows is not None:
            return
        try:
            descriptor = open_unblocked(expand_path(path))
        except OSError as error:
            raise self.refusal(f"{error.strerror}: give a file that can be read") from None
        try:
            status = os.fstat(descriptor)
            head = os.pread(descriptor, 8, 0) if stat.S_ISREG(status.st_mode) else b""
        finally:
            os.close(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise self.refusal("is not a regular file: give one")
        if not head:
            raise self.refusal("is empty: give a log with a request")
        for magic, why in NO_TEXT.items():
            if head.startswith(magic):
                raise self.refusal(why)
        self._packed = head.startswith(GZIP)

    def refusal(self, why: str, row: int | None = None) -> UsageError:
        """Make the error that names the log and, if `row` is given, that line, counted from 1."""
        if self._rows is not None:
            return self._rows.file.refusal(why, row)
        fault = LogFault(f"{self.path if row is None else f'{self.path} row {row}'}: {why}")
        fault.is_cut = row is not None and row == self._unended
        return fault

    def read_lines(self, blank: bool = False) -> Iterator[tuple[int, str]]:
        """Yield (number, text) of each line that is not blank, the number from 1; `blank`: of those too.

        Raises UsageError for what is no text, or is damaged, and if every line is blank.
        """
        if self._rows is not None:
            yield from ((i, row.decode()) for i, row in enumerate(self._rows.read_rows(), 1))
            return
        row, is_blank = 0, True
        try:
            with self._open() as file:
                while line := file.readline(MOST_ROW_BYTES + 1):
                    row += 1
                    self._unended = 0 if row == 1 or line.endswith(b"\n") else row
                    if len(line) > MOST_ROW_BYTES:
                        raise self.refusal(f"is longer than {MOST_ROW_BYTES >> 20} MiB: is it a log?", row)
                    text = line.decode().rstrip("\r\n")
                    if row == 1:
                        text = text.removeprefix(_BOM)
                    if text and not text.isspace():
                        is_blank = False
                        yield row, text
                    elif blank:
                        yield row, ""
        except UnicodeDecodeError:
            raise self.refusal("is not UTF-8: convert the file to it", row) from None
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise self.refusal("is damaged or cut short: gzip cannot unpack it", row + 1) from None
        except OSError as error:
            raise self.refusal(f"{error.strerror}", row + 1) from None
        if is_blank:
            raise self.refusal("holds no rows: every line is blank")

    def open_rows(self) -> Lines:
        """Open the rows of a log of JSON, to be read in any order; raises UsageError for other text."""
        return open_rows(self.path, "LOG") if self._rows is None else self._rows

    def read_head(self) -> list[str]:
        """Return the first lines, up to a hundred or 1 MiB, that are not blank."""
        lines, size = list[str](), 0
        for _, line in self.read_lines():
            lines.append(line)
            size += len(line)
            if len(lines) == 100 or size > _MOST_HEAD_BYTES:
                break
        return lines

    @contextmanager
    def _open(self) -> Iterator[BinaryIO]:
        with os.fdopen(open_unblocked(expand_path(self.path)), "rb", 1 << 20) as file:
            if not self._packed:
                yield file
                return
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield cast(BinaryIO, unpacked)
