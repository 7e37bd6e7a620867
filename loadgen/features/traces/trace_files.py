"""Trace files: the rows of a trace in a file of lines, a JSON text over many, or a directory of these."""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from loadgen.base.errors import UsageError
from loadgen.base.files import expand_path
from loadgen.base.json_lines import Lines, OpenedFile, SpooledFile, explain_json
from loadgen.base.untrusted import NOT_JSON

_SUFFIXES = (".json", ".jsonl", ".json.gz", ".jsonl.gz")
_MOST_TEXT_BYTES = 1 << 30  # of JSON over many lines, which is decoded as a whole
_MOST_OBJECT_BYTES = 256 << 20  # of one object of it, of whose values some readers keep all


def list_files(path: str, flag: str) -> list[str]:
    """List the files of JSON in a directory, by name; of any other path that alone.

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


def open_rows(path: str, flag: str, first: OpenedFile | None = None) -> Lines:
    """Open the rows of a trace of JSON, whose first file may be open; raises UsageError for other text.

    A file of lines is itself. The values of a list over many lines, or one object, and the rows of all files
    of a directory are the rows of a temporary file; what is wrong with one names its own file.
    """
    files = list_files(path, flag)
    if files != [path]:
        return Lines(_JoinedFile(path, flag, (Lines.open(name, flag) for name in files)))
    lines = Lines(first or OpenedFile(path, flag))
    return Lines(_JoinedFile(path, flag, [lines])) if _is_text(lines) else lines


def _is_text(lines: Lines) -> bool:
    """Whether a file is one JSON text, a list or an object over many lines, and not an object a line."""
    first = lines[0].strip()
    if not first.startswith(b"{"):
        return first.startswith(b"[")
    try:
        msgspec.json.decode(first)
    except NOT_JSON:
        return not first.endswith(b"}")
    return False


class _JoinedFile(SpooledFile):
    """The rows of several files, which know their own places."""

    most_row_bytes = _MOST_OBJECT_BYTES

    def __init__(self, path: str, flag: str, parts: Iterable[Lines]) -> None:
        self._files, self._begins = list[str](), list[int]()  # the first row of each
        self._numbers: list[int | None] = []  # of each row in its file
        self._digests: list[str] = []
        super().__init__(path, flag, self._read_rows(parts), self._join_digests)

    def _read_rows(self, parts: Iterable[Lines]) -> Iterator[bytes]:
        for lines in parts:
            self._files.append(lines.path)
            self._begins.append(len(self._numbers))
            self._digests.append(lines.digest())
            for number, row in _read_text(lines) if _is_text(lines) else _number_rows(lines):
                self._numbers.append(number)
                yield row

    def _join_digests(self) -> str:
        """Return a hash of the bytes of all files; of one alone its own."""
        if len(self._digests) == 1:
            return self._digests[0]
        return hashlib.blake2b(" ".join(self._digests).encode(), digest_size=16).hexdigest()

    def refusal(self, why: str, row: int | None = None) -> UsageError:
        if row is None or not self._begins:
            return super().refusal(why)
        file = self._files[bisect_right(self._begins, row - 1) - 1]
        number = self._numbers[row - 1]
        return UsageError(f"{self.flag} {file if number is None else f'{file} row {number}'}: {why}")


def _number_rows(lines: Lines) -> Iterator[tuple[int, bytes]]:
    yield from ((lines.number(i), row) for i, row in enumerate(lines.read_rows()))


def _read_text(lines: Lines) -> Iterator[tuple[int | None, bytes]]:
    """Yield the values of a JSON text, each on a line, numbered from 1 if it is a list; raises UsageError."""
    file = lines.file
    if file.size > _MOST_TEXT_BYTES:
        raise file.refusal("is JSON of more than 1 GiB over many lines: write an object a line (`jq -c .`)")
    text = b"".join(chunk for _, chunk in file.read_chunks())
    try:
        found = msgspec.json.decode(text, type=list[msgspec.Raw] | dict[str, msgspec.Raw])
        rows = enumerate(found, 1) if isinstance(found, list) else [(None, text)]
        for number, row in rows:
            if len(row) > _MOST_OBJECT_BYTES:
                size = _MOST_OBJECT_BYTES >> 20
                raise file.refusal(
                    f"is an object of more than {size} MiB: write smaller ones, one a line", number
                )
            yield number, msgspec.json.format(row, indent=-1)
    except NOT_JSON as error:
        raise file.refusal(explain_json(text, error)) from None
