"""JSON lines: the rows of a file, found once and read when they are needed, and what is wrong with one."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import math
import os
import re
import stat
import tempfile
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.base.arrays import Int64
from loadgen.base.errors import UsageError
from loadgen.base.files import expand_path
from loadgen.base.text import clean_line
from loadgen.base.untrusted import NOT_JSON, open_unblocked

MOST_ROW_BYTES = 64 << 20
_CHUNK_BYTES = 4 << 20
_HEAD_BYTES = 1 << 20
GZIP = b"\x1f\x8b"
_MOST_UNPACKED_BYTES = 64 << 30
_BOM = b"\xef\xbb\xbf"
_NEWLINE = 10
_NO_BLANK = np.array([bool(bytes([byte]).strip()) for byte in range(256)])
_SHORT_BYTES = 8  # a longer line of blanks alone is refused as a row
# A file that begins like this is not text; each has the advice to give.
NO_TEXT = {
    b"\x28\xb5\x2f\xfd": "is compressed (zstd): unpack it first",
    b"\xfd7zXZ\x00": "is compressed (xz): unpack it first",
    b"BZh": "is compressed (bzip2): unpack it first",
    b"PK\x03\x04": "is a zip archive: unpack it first",
    b"\x04\x22\x4d\x18": "is compressed (lz4): unpack it first",
    b"\xff\xfe": "is UTF-16: convert it to UTF-8",
    b"\xfe\xff": "is UTF-16: convert it to UTF-8",
}
T = TypeVar("T")
_MOST_READ_BYTES = 64 << 20  # of JSON that is read again for the value
_MOST_LETTERS = 40  # of a value that is shown
_PLACE = re.compile(r"(.*?)(?: - at `\$(.*)`)?", re.DOTALL)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
_BOUNDS = {">=": "{} or more", "<=": "{} or less", ">": "more than {}", "<": "less than {}"}
_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}
_TOO_LARGE = ("Number out of range", "Integer value out of range")  # msgspec's words
_SMALLER = "give a number that a float can hold"
_UNNAMED = "[...]"  # a key of a dictionary in msgspec's paths
_MOST_DIGITS = 4300  # that Python reads as an integer
_MISSING = re.compile(r"Object missing required field `(.+)`")


class OpenedFile:
    """A regular text file, open for reading at any position.

    Raises UsageError if it cannot be opened, is empty, compressed or UTF-16. It is read, not mapped: a mapped
    file that is cut short ends the process, and its pages count as ours.
    """

    first_row = 1  # the number of its first row
    begin = 0  # of what is not a byte order mark
    grows = False  # it may, and what it is longer by is read too
    most_row_bytes = MOST_ROW_BYTES

    def __init__(self, path: str, flag: str) -> None:
        self.path, self.flag = path, flag
        at = expand_path(path)
        try:
            descriptor = open_unblocked(at)
        except OSError as error:
            raise self.refusal(f"{error.strerror}: give a file that can be read") from None
        status = self._keep_open(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise self.refusal("is a directory: give a file")
        if not stat.S_ISREG(status.st_mode):
            raise self.refusal("is not a regular file: give one")
        if not status.st_size:
            raise self.refusal("is empty: give a file with a request in each line")
        self._is_packed = self.read(0, len(GZIP)) == GZIP
        head = next(self.read_pieces(8), b"")
        if not head:
            raise self.refusal("is empty: give a file with a request in each line")
        for magic, why in NO_TEXT.items():
            if head.startswith(magic):
                raise self.refusal(why)
        self.begin = len(_BOM) if head.startswith(_BOM) else 0

    @property
    def size(self) -> int:
        """The bytes of the text, which is unpacked with its first use."""
        if self._is_packed:
            self._unpack()
        return self._size

    def read_pieces(self, size: int) -> Iterator[bytes]:
        """Yield the text after a byte order mark in pieces of `size`, unpacked no further than it is read.

        Raises UsageError for a damaged file, and as `read`.
        """
        if not self._is_packed:
            at = self.begin
            while piece := self.read(at, size):
                yield piece
                at += len(piece)
            return
        try:
            with open(os.dup(self._descriptor), "rb") as file, gzip.GzipFile(fileobj=file) as text:
                file.seek(0)
                text.read(self.begin)
                while piece := text.read(size):
                    yield piece
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise self.refusal("is damaged or cut short: gzip cannot unpack it") from None
        except OSError as error:
            raise self.refusal(f"cannot be unpacked: {error.strerror}") from None

    def read_lines(self) -> Iterator[bytes]:
        """Yield the lines with their line feeds, unpacked as they are read; one over 64 MiB is cut, and last.

        Raises UsageError as `read_pieces`.
        """
        unended = list[bytes]()  # pieces of a line that goes on in the next one
        for piece in self.read_pieces(_HEAD_BYTES):
            lines = io.BytesIO(piece).readlines()
            if lines[0].endswith(b"\n"):
                lines[0] = b"".join((*unended, lines[0]))
                unended.clear()
            if not lines[-1].endswith(b"\n"):
                unended.append(lines.pop())
            yield from lines
            if sum(map(len, unended)) > MOST_ROW_BYTES:
                break
        if unended:
            yield b"".join(unended)

    def _unpack(self) -> None:
        """Unpack the text into a temporary file without a name, which is read from now on.

        Raises UsageError for a damaged file, or a text of more than 64 GiB.
        """
        try:
            with tempfile.TemporaryFile() as copy:
                for piece in self.read_pieces(_CHUNK_BYTES):
                    copy.write(piece)
                    if copy.tell() > _MOST_UNPACKED_BYTES:
                        raise self.refusal(f"holds over {_MOST_UNPACKED_BYTES >> 30} GiB: unzip it first")
                copy.flush()
                self._keep_open(os.dup(copy.fileno()))
                self.begin = 0
        except OSError as error:
            raise self.refusal(f"cannot be unpacked: {error.strerror}") from None

    def _keep_open(self, descriptor: int) -> os.stat_result:
        """Keep a descriptor open while this object lives; set size and time; return the file's status."""
        weakref.finalize(self, os.close, descriptor)
        self._descriptor, self._is_packed = descriptor, False
        status = os.fstat(descriptor)
        self._size = status.st_size
        self._modified_ns = status.st_mtime_ns
        return status

    def refusal(self, why: str, row: int | None = None) -> UsageError:
        """Make the error that names flag, file and, if `row` is given, that line, counted from 1."""
        where = self.path if row is None else f"{self.path} row {row}"
        return UsageError(f"{self.flag} {where}: {why}")

    def read(self, begin: int, size: int) -> bytes:
        """Read up to `size` bytes at `begin`; raises UsageError if the file has changed or cannot be read."""
        if self._is_packed:
            self._unpack()
        status = os.fstat(self._descriptor)
        if not self.grows and (status.st_size, status.st_mtime_ns) != (self._size, self._modified_ns):
            raise self.refusal("changed while it was read: run again when it is complete")
        try:
            return os.pread(self._descriptor, size, begin)
        except OSError as error:
            raise self.refusal(f"{error.strerror}") from None

    def read_first_byte(self) -> bytes:
        """Return the first non-blank byte in the text's first 4 KiB; b"" if there is none."""
        return self.read(self.begin, 4096).lstrip()[:1]

    def read_chunks(self) -> Iterator[tuple[int, bytes]]:
        """Yield (position, bytes) of 4 MiB at most, after a byte order mark; raises UsageError as `read`."""
        at = self.begin
        while at < self.size:
            chunk = self.read(at, min(_CHUNK_BYTES, self.size - at))
            if not chunk:
                raise self.refusal("ends before its size: run again when it is complete")
            yield at, chunk
            at += len(chunk)

    def digest(self) -> str:
        """Return a blake2b hash of the file's bytes without a byte order mark, as 32 hex digits."""
        hashed = hashlib.blake2b(digest_size=16)
        for _, chunk in self.read_chunks():
            hashed.update(chunk)
        return hashed.hexdigest()


class SpooledFile(OpenedFile):
    """Rows of JSON in an unnamed temporary file, reported under the name of what they were read from."""

    def __init__(
        self, path: str, flag: str, rows: Iterable[bytes], digest: Callable[[], str], first_row: int = 1
    ) -> None:
        self.path, self.flag, self.first_row = path, flag, first_row
        self._digest = digest
        try:
            with tempfile.TemporaryFile() as spool:
                spool.writelines(row + b"\n" for row in rows)
                spool.flush()
                self._keep_open(os.dup(spool.fileno()))
        except OSError as error:
            raise self.refusal(
                f"cannot be written out as JSON below {tempfile.gettempdir()} ({error.strerror}): "
                "free some space there, or name another directory in TMPDIR"
            ) from None
        if not self.size:
            raise self.refusal("holds no rows")

    def digest(self) -> str:
        """Return the hash of what the rows were read from."""
        return self._digest()


class Lines:
    """The non-blank lines of a text file, JSON or not, one row each; raises UsageError if there are none.

    `begins` and `ends` are int64[rows]: each row's place in the file, in bytes.
    """

    def __init__(self, file: OpenedFile) -> None:
        self.file = file
        self.path, self.flag = file.path, file.flag
        breaks = np.concatenate(list(_find_breaks(file)))
        begins = np.concatenate(([file.begin], breaks + 1)).astype(np.int64)
        ends = np.concatenate((breaks, [file.size])).astype(np.int64)
        kept = ends > begins
        short = np.flatnonzero(kept & (ends - begins < _SHORT_BYTES))
        kept[short] = _find_written(file, begins[short], ends[short])
        self.begins, self.ends = begins[kept], ends[kept]
        # The number of each row's line, from 0; None where it is the row's own index.
        self._numbers = None if kept[:-1].all() else np.flatnonzero(kept).astype(np.int64)
        if not len(self.begins):
            raise file.refusal("holds no rows: every line is blank")
        self._digest = ""

    @classmethod
    def open(cls, path: str, flag: str) -> Lines:
        """Open the file that a flag names and find its rows; raises UsageError if it is not such text."""
        return cls(OpenedFile(path, flag))

    @classmethod
    def open_head(cls, file: OpenedFile) -> Lines | None:
        """Find the rows in a file's first MiB alone; None if it ends no line there that is not blank."""
        head = file.read(file.begin, _HEAD_BYTES)
        rows = head.split(b"\n")
        rows = rows[:-1] if file.size - file.begin > len(head) else rows
        some = any(map(bytes.strip, rows))
        return cls(SpooledFile(file.path, file.flag, rows, file.digest)) if some else None

    def __len__(self) -> int:
        return len(self.begins)

    def __getitem__(self, i: int) -> bytes:
        """Return row i without its line feed (a CR stays); raises UsageError if the file has changed."""
        begin = int(self.begins[i])
        return self.file.read(begin, int(self.ends[i]) - begin)

    def number(self, i: int) -> int:
        """Return the line number of row i, counted from 1."""
        line = i if self._numbers is None else int(self._numbers[i])
        return line + self.file.first_row

    def drop_cut_row(self) -> bool:
        """Drop the last of several rows if it has no line feed and is not JSON; return whether it was."""
        last = len(self) - 1
        if last and self.file.read(self.file.size - 1, 1) != b"\n":
            try:
                msgspec.json.decode(self[last])
            except NOT_JSON:
                self.begins, self.ends = self.begins[:last], self.ends[:last]
                return True
        return False

    def list_numbers(self) -> Int64:
        """List the line number of each row, counted from 1, int64[rows]."""
        lines = np.arange(len(self)) if self._numbers is None else self._numbers[: len(self)]
        return lines + self.file.first_row

    def name_row(self, i: int) -> str:
        """Name row i by file and line, as `data.jsonl row 17`."""
        return f"{self.path} row {self.number(i)}"

    def refusal(self, i: int, why: str) -> UsageError:
        """Make the error that names flag, file and row."""
        return self.file.refusal(why, self.number(i))

    def read_rows(self) -> Iterator[bytes]:
        """Yield every row's bytes in order; raises UsageError if the file has changed."""
        return self.read_span(0, len(self))

    def read_span(self, begin: int, stop: int) -> Iterator[bytes]:
        """Yield the bytes of rows `begin` up to `stop`, not included, read in large pieces."""
        while begin < stop:
            first = int(self.begins[begin])
            end = int(np.searchsorted(self.ends, first + _CHUNK_BYTES, "right"))
            end = min(max(end, begin + 1), stop)
            piece = self.file.read(first, int(self.ends[end - 1]) - first)
            places = zip(
                (self.begins[begin:end] - first).tolist(),
                (self.ends[begin:end] - first).tolist(),
                strict=True,
            )
            for row_begin, row_end in places:
                yield piece[row_begin:row_end]
            begin = end

    def decode_rows(self, kind: type[T], begin: int = 0) -> Iterator[T]:
        """Yield all rows from `begin` on, decoded from JSON as `kind`; raises UsageError for a wrong row."""
        decode = msgspec.json.Decoder(kind).decode
        for i, row in enumerate(self.read_span(begin, len(self)), begin):
            try:
                yield decode(row)
            except NOT_JSON as error:
                raise self.refusal(i, explain_json(row, error)) from None

    def digest(self) -> str:
        """Return the file's hash, as `OpenedFile.digest`; it is read once only."""
        self._digest = self._digest or self.file.digest()
        return self._digest


def explain_json(row: bytes, error: Exception, name: str = "") -> str:
    """Explain in a few words why bytes are not JSON of the expected type; `name` is the value's."""
    if isinstance(error, msgspec.ValidationError):
        return explain_fault(error, row, name)
    return f"{name}: {_explain_syntax(row, error)}" if name else _explain_syntax(row, error)


def _explain_syntax(row: bytes, error: Exception) -> str:
    """Explain why msgspec raised `error`: the fault that Python's parser finds, nesting, or a surrogate."""
    try:
        endless = _find_endless(row)
    except json.JSONDecodeError as fault:
        hint = "" if fault.pos else ": each row is an object of JSON, as docs/datasets.md shows"
        line = f"line {fault.lineno}, " if fault.lineno > 1 else ""
        return f"is not valid JSON: {fault.msg} ({line}column {fault.colno}){hint}"
    except RecursionError:
        return "is nested too deep"
    except ValueError as fault:  # no UTF-8
        return f"is not valid JSON: {fault}"
    if endless:
        return f"is not valid JSON: {endless}, no number of JSON"
    if isinstance(error, RecursionError):
        return "is nested too deep"
    return "is not valid JSON: it holds half of a surrogate pair"


class _Endless(str):
    """A number as it is written that no float holds: too large, or NaN."""


def _find_endless(row: bytes) -> str:
    """Find the first number of some JSON that is not finite, as `rows[0].t is 1e999`; "" if all are.

    Raises ValueError for what is no JSON, and RecursionError for what is nested too deep.
    """
    found = json.loads(
        row,
        parse_constant=_Endless,
        parse_float=lambda text: value if math.isfinite(value := float(text)) else _Endless(text),
        parse_int=lambda text: _Endless(text) if len(text) > _MOST_DIGITS else 0,
    )
    left: list[tuple[str, Any]] = [("", found)]
    while left:
        path, value = left.pop()
        if isinstance(value, _Endless):
            return f"{path.removeprefix('.') or 'it'} is {value[:_MOST_LETTERS]}"
        if isinstance(value, dict):
            left += [(f"{path}.{key}", inner) for key, inner in reversed(value.items())]
        elif isinstance(value, list):
            left += [(f"{path}[{place}]", value[place]) for place in reversed(range(len(value)))]
    return ""


def _find_written(file: OpenedFile, begins: Int64, ends: Int64) -> NDArray[np.bool_]:
    """Mark which of some lines under 8 bytes hold more than blanks, bool[lines]."""
    written = np.zeros(len(begins), np.bool_)
    at = 0
    while at < len(begins):
        first = int(begins[at])
        stop = max(int(np.searchsorted(ends, first + _CHUNK_BYTES, "right")), at + 1)
        piece = np.frombuffer(file.read(first, int(ends[stop - 1]) - first), np.uint8)
        places, last = begins[at:stop] - first, ends[at:stop] - first - 1
        for offset in range(_SHORT_BYTES - 1):
            written[at:stop] |= _NO_BLANK[piece[np.minimum(places + offset, last)]]
        at = stop
    return written


def _find_breaks(file: OpenedFile) -> Iterator[Int64]:
    """Yield the places of line feeds, by pieces; raises UsageError for a line over 64 MiB or not in UTF-8."""
    cut = b""  # the first bytes of a character that the piece before it cut
    count, line_begin = 0, file.begin
    for at, chunk in file.read_chunks():
        found = np.flatnonzero(np.frombuffer(chunk, dtype=np.uint8) == _NEWLINE) + at
        first_end = int(found[0]) if len(found) else at + len(chunk)
        if first_end - line_begin > file.most_row_bytes:
            raise file.refusal(
                f"is longer than {file.most_row_bytes >> 20} MiB: is the file JSONL?", count + 1
            )
        try:
            cut = _cut_character(cut + chunk, at + len(chunk) == file.size)
        except UnicodeDecodeError as error:
            row = count + int(np.searchsorted(found, at + len(chunk) - len(error.object) + error.start)) + 1
            raise file.refusal("is not UTF-8: convert the file to it", row) from None
        count += len(found)
        line_begin = int(found[-1]) + 1 if len(found) else line_begin
        yield found


def _cut_character(text: bytes, last: bool) -> bytes:
    """Return the cut character that ends a piece, b"" if none; raises UnicodeDecodeError for other faults.

    In the `last` piece of a file a cut character is a fault too.
    """
    if text.isascii():
        return b""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        if (
            last
            or error.end < len(text)
            or len(text) - error.start > 3
            or "unexpected end" not in error.reason
        ):
            raise
        return text[error.start :]
    return b""


def _give_types(found: re.Match[str]) -> str:
    names = [name for name in found[1].split(" | ") if name != "null"]
    return "give " + " or ".join(_TYPES.get(name, name) for name in names)


# Each pattern matches a message of msgspec about a value; its function words the advice.
_ADVICE: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
    (
        re.compile(r"Expected `(?:int|float)` (>=|<=|>|<) (\S+)"),
        lambda found: "give " + _BOUNDS[found[1]].format(found[2].removesuffix(".0")),
    ),
    (re.compile(r"Expected `\w+` of length >= 1"), lambda _: "it must not be empty"),
    (re.compile(r"Expected `(.+)`, got `.+`"), _give_types),
    (re.compile("|".join(_TOO_LARGE)), lambda _: _SMALLER),
    (re.compile(r"Invalid enum value .+"), lambda _: "not one of its values"),
)


def explain_fault(error: msgspec.ValidationError, row: bytes, name: str = "") -> str:
    """Explain what is wrong in the JSON of `row`, as `timestamp is -3: give 0 or more`.

    `name` is that of the whole of it; "" where it has none. What has no plain words keeps msgspec's.
    """
    found = _PLACE.fullmatch(str(error))
    what, path = (str(error), "") if found is None else (found[1], found[2] or "")
    if what in _TOO_LARGE and _UNNAMED in path and (endless := _find_endless(row)):
        return f"{name}{'.' * bool(name)}{endless}: {_SMALLER}"
    where = name + path if name else path.removeprefix(".")
    if missing := _MISSING.fullmatch(what):
        return f"{where} has no {missing[1]}".lstrip()
    for pattern, advice in _ADVICE:
        if expected := pattern.fullmatch(what):
            value = _find_value(row, path)
            return (
                f"{where} is {value}: {advice(expected)}".lstrip()
                if value
                else f"{where}: {advice(expected)}"
            )
    return f"{where}: {what}" if where else what


def _find_value(row: bytes, path: str) -> str:
    """Return the JSON at a path of a row, cut to 40 characters; "" if not found or the row is over 64 MiB."""
    steps = _STEP.findall(path)
    if (
        len(row) > _MOST_READ_BYTES
        or "".join(f".{key}" if key else f"[{place}]" for key, place in steps) != path
    ):
        return ""
    try:
        for key, place in steps:
            if key:
                row = bytes(msgspec.json.decode(row, type=dict[str, msgspec.Raw])[key])
            else:
                row = bytes(msgspec.json.decode(row, type=list[msgspec.Raw])[int(place)])
    except (*NOT_JSON, LookupError):
        return ""
    text = clean_line(row.strip()[: 8 * _MOST_LETTERS].decode("utf-8", "replace"))
    return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}…"
