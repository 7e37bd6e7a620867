"""Journal: what a run has measured so far, on disk while it goes on, readable however it ended.

A file of frames that is only ever appended to. A frame is written whole, with its length and a checksum
in front, so a file cut at any byte gives every frame before the cut. The first frame is what was known
before the first request; the last frame of that kind holds.
"""

from __future__ import annotations

import os
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import msgspec

from loadgen.base import clock
from loadgen.base.files import open_refusing_link
from loadgen.records.record import Record, Records

JOURNAL = "journal.bin"  # in a run's directory; it stays where the result could not be written
MAGIC = b"loadgen journal 1\n"
FACTS, REQUESTS = b"F", b"R"  # kinds of frames: JSON about the run, and Records.pack() of some requests
_FRAME = struct.Struct("<cxxxIQ")  # kind, CRC-32 of the payload, its bytes
_EVERY_NS = 250_000_000  # a request is on disk within this time of being decoded
_MOST_ROWS, _MOST_MESSAGES = 256, 1 << 18  # of one frame, about
_SYNC_S = 2.0  # between two fsyncs: what a power cut may cost; a killed process loses nothing written
_LONGEST_FRAME = 1 << 30
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL


class JournalContents(msgspec.Struct, frozen=True):
    """The facts of a journal, and how far it could be read."""

    facts: bytes  # JSON; b"" where the file ends before its first frame does
    end: int  # bytes up to the end of the last whole frame
    size: int  # of the file


class Parts(msgspec.Struct, frozen=True):
    """The records of a journal, read again from disk at each iteration, one frame at a time."""

    begin: Callable[[], Iterator[Records]]

    def __iter__(self) -> Iterator[Records]:
        return self.begin()


class Journal:
    """Stores decoded records on disk while a run goes on, and returns them all as Records at its end.

    Without a `path` it is kept in memory. A path that can no longer be written costs nothing that was
    measured: `error` has the reason, what follows is kept in memory, and `close` tries once more. Where
    several processes decode, each has a file of its own: a `part` of this journal.
    """

    def __init__(self, path: Path | None = None, warn: Callable[[str], None] = lambda _: None) -> None:
        self.path, self.warn = path, warn
        self.requests = 0  # that were added
        self.error = ""  # why the file could not be written, while it is not whole
        self._rows: list[Record] = []
        self._messages = 0  # of these rows
        self._unwritten: list[tuple[bytes, bytes]] = []  # frames that are in memory alone: kind, payload
        self._end = 0  # bytes of the file that are whole frames
        self._written_ns = clock.now_ns()
        self._file = -1
        self._over = threading.Event()
        self._syncing: threading.Thread | None = None
        self._files: list[Journal] = []  # of other processes

    def open_part(self, number: int) -> Journal:
        """Open the part of this journal that another process will write; call it before the fork.

        What that process cannot write it sends back, for `take` of the part to keep.
        """
        path = self.path  # journal-0.bin of journal.bin
        part = Journal(None if path is None else path.with_name(f"{path.stem}-{number}{path.suffix}"))
        if not part._attempt(part._open):
            part.path = None
        self._files.append(part)
        return part

    def take(self, frames: Iterable[tuple[bytes, bytes]]) -> None:
        """Keep in memory the frames, (kind, payload), that another process could not write to this part."""
        self._unwritten += frames

    @property
    def unwritten(self) -> list[tuple[bytes, bytes]]:
        """The frames, (kind, payload), that are in memory alone because the file failed."""
        return self._unwritten

    def put_facts(self, text: bytes) -> None:
        """Store the run's facts as JSON; readers take the last ones stored."""
        self._put(FACTS, text)

    def add(self, record: Record) -> None:
        """Store a decoded record; it is written to disk with others, by `write` or once there are enough."""
        self.requests += 1
        self._rows.append(record)
        self._messages += len(record.arrival_ns)
        if len(self._rows) >= _MOST_ROWS or self._messages >= _MOST_MESSAGES:
            self._flush()

    def write(self) -> None:
        """Write the waiting records if the last were written 0.25 s ago; call it a few times a second."""
        if self._rows and clock.now_ns() - self._written_ns >= _EVERY_NS:
            self._flush()

    def start_syncing(self) -> None:
        """Start a thread that syncs the file, if any, to disk every 2 s; call it after the last fork."""
        if self._file >= 0:
            self._over.clear()
            self._syncing = threading.Thread(target=self._sync, name="journal", daemon=True)
            self._syncing.start()

    def finish(self) -> None:
        """Write and sync everything and end the syncing thread; a file that failed is tried once more."""
        self._flush()
        if self._syncing is not None:
            self._over.set()
            self._syncing.join()
            self._syncing = None
        again = [frame for journal in (self, *self._files) for frame in journal._unwritten]
        if again and self.path is not None:
            self.error = ""
            for journal in (self, *self._files):
                journal._unwritten = []
            for kind, payload in again:
                self._put(kind, payload)
        for journal in (self, *self._files):
            if journal._file >= 0 and not journal.error:
                self._attempt(partial(os.fsync, journal._file))

    def records(
        self, spill: Path | None = None, revise: Callable[[Records], Records] | None = None
    ) -> Records:
        """Join every stored record, sorted by plan index; long columns lie in files under `spill`.

        They are kept in memory if that has no room. `revise` is applied to each part before they are joined.
        """
        revised = self.parts() if revise is None else Parts(lambda: map(revise, self.parts()))
        try:
            return Records.join(revised, spill)
        except OSError:  # no room to spill to: then memory must hold them
            return Records.join(revised)

    def parts(self) -> Parts:
        """Write the waiting records; return an iterable of all stored ones, one frame at a time."""
        self._flush()
        return Parts(self._read_kept)

    def remove(self) -> None:
        """Close and delete the journal's files, once all of their content is stored elsewhere."""
        self.close()
        for journal in (self, *self._files):
            if journal.path is not None:
                journal.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file and its parts' and end the syncing; what was written stays."""
        self._over.set()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        for part in self._files:
            part.close()

    def _read_kept(self) -> Iterator[Records]:
        """Yield the stored records, a frame at a time: of the file, of memory, then of the parts."""
        if self._file >= 0:  # not by its name: that may be gone
            with os.fdopen(os.dup(self._file), "rb") as file:
                yield from _read_requests(file.fileno())
        for kind, payload in self._unwritten:
            if kind == REQUESTS:
                yield Records.unpack(payload)
        for part in self._files:
            yield from part._read_kept()

    def _flush(self) -> None:
        self._written_ns = clock.now_ns()
        if self._rows:
            rows, self._rows, self._messages = self._rows, [], 0
            self._put(REQUESTS, Records.from_records(rows).pack())

    def _put(self, kind: bytes, payload: bytes) -> None:
        """Append a frame to the file; if it cannot be written, keep it in `unwritten`."""
        nowhere = self.path is None and self._file < 0
        if nowhere or self.error or not self._attempt(lambda: self._append(kind, payload)):
            self._unwritten.append((kind, payload))

    def _open(self) -> None:
        """Open the file, or an unnamed temporary one if there is no path."""
        if self.path is not None:
            self._file = open_refusing_link(self.path, _FLAGS)
        else:
            self._file = os.memfd_create("loadgen-journal", os.MFD_CLOEXEC)

    def _append(self, kind: bytes, payload: bytes) -> None:
        """Append a frame to the file, opened if it is not; if that raises OSError, no part of it stays."""
        if self._file < 0:
            self._open()
        frame = _FRAME.pack(kind, zlib.crc32(payload), len(payload)) + payload
        data = frame if self._end else MAGIC + frame
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError:
            os.ftruncate(self._file, self._end)  # no half frame: what follows would be unreadable
            raise
        self._end += len(data)

    def _attempt(self, write: Callable[[], None]) -> bool:
        """Call `write`; if it raises OSError, keep and warn of the reason and return False."""
        try:
            write()
        except OSError as error:
            self.error = f"{self.path or 'memory'}: {error.strerror or error}"
            self.warn(f"cannot write the journal, measuring continues in memory: {self.error}")
            return False
        return True

    def _sync(self) -> None:
        """Sync the file to disk every 2 s until `finish`, `close` or an error."""
        while not self._over.wait(_SYNC_S):
            try:
                os.fdatasync(self._file)
            except OSError:
                return  # `finish` syncs again, and reports why it cannot


class Tail:
    """The records of a journal and its parts while they are written, each read once; for a thread of its own.

    What is in memory alone, since there is no file or it failed, is not among them.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._ends: dict[int, int] = {}  # by file: bytes read

    def read(self) -> Iterator[Records]:
        """Yield the frames of records that were written whole since the last call; raises OSError."""
        files = [each._file for each in (self._journal, *self._journal._files)]
        for file in (number for number in files if number >= 0):
            for kind, payload, end in _read_frames(file, self._ends.get(file, 0)):
                self._ends[file] = end
                if kind == REQUESTS:
                    yield Records.unpack(payload)


def list_files(path: Path) -> list[Path]:
    """List a journal's own file, which may not exist, and those of its parts that do."""
    parts = path.parent.glob(f"{path.stem}-*{path.suffix}")
    return [path, *sorted(part for part in parts if part.stem.rpartition("-")[2].isdecimal())]


def read_journal(path: Path) -> JournalContents:
    """Read a journal's facts, and how far its files are intact.

    Raises OSError where a file cannot be read and ValueError where it is not a journal.
    """
    facts, whole, size = b"", 0, 0
    for part in list_files(path):
        with part.open("rb") as file:
            last = 0
            for kind, payload, end in _read_frames(file.fileno()):
                facts, last = payload if kind == FACTS else facts, end
            whole, size = whole + last, size + os.fstat(file.fileno()).st_size
    return JournalContents(facts, whole, size)


def open_parts(path: Path) -> Parts:
    """Return an iterable of a journal's records; iterating it raises as `read_journal` does."""

    def begin() -> Iterator[Records]:
        for part in list_files(path):
            with part.open("rb") as file:
                yield from _read_requests(file.fileno())

    return Parts(begin)


def _read_requests(file: int) -> Iterator[Records]:
    for kind, payload, _ in _read_frames(file):
        if kind == REQUESTS:
            yield Records.unpack(payload)


def _read_frames(file: int, end: int = 0) -> Iterator[tuple[bytes, bytes, int]]:
    """Yield kind, payload, end (bytes) of each frame from byte `end` on, up to one cut or damaged.

    `file` is an open file's descriptor, whose position is not used: another may write. Raises ValueError.
    """
    size = os.fstat(file).st_size
    if not end:
        magic = os.pread(file, len(MAGIC), 0)
        if magic != MAGIC[: len(magic)]:
            raise ValueError("it is not a journal of this version")
        end = len(magic)
    while len(head := os.pread(file, _FRAME.size, end)) == _FRAME.size:
        kind, checksum, length = _FRAME.unpack(head)
        if length > min(size - end - _FRAME.size, _LONGEST_FRAME):
            return
        payload = os.pread(file, length, end + _FRAME.size)
        if len(payload) < length or zlib.crc32(payload) != checksum:
            return
        end += _FRAME.size + length
        yield kind, payload, end
