"""Reference file: what a reference's server sampled and scored, for candidates that are served later.

JSON lines, compressed by gzip. The first line is the header; each later one is an answer, the scores of an
answer, or a segment of the text. Each `append` is a gzip member of its own, on the disk when it returns: what
was cut off or damaged costs the lines behind the damage, never those before.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from loadgen.base import files
from loadgen.base.errors import MeasureError, UsageError
from loadgen.base.untrusted import open_regular
from loadgen.facts.run_facts import GreedyAnswer
from loadgen.study.quality.quality_record import SampledAnswer, TextSegment, TokenScores
from loadgen.study.quality.quality_text import TokenizedText

VERSION = 1
GREEDY = "greedy"  # of a header's settings: the file has greedy answers
_GZIP = 16 + zlib.MAX_WBITS  # of zlib: a member with gzip's header
_PIECE = 1 << 16  # compressed bytes read at once, and plain ones inflated at once
_MEMBER_BYTES = 8 << 20  # plain ones of a member, from which on the next line begins another
_MOST_BYTES = 64 << 20  # plain ones of a member that is read
_FLAGS = os.O_WRONLY | os.O_CREAT
_MOST_ID = (1 << 31) - 1
_FOREIGN = "is not a file that `loadgen quality --save` made: name another"


class ReferenceHeader(msgspec.Struct, frozen=True, kw_only=True):
    """Whose answers a reference file has, and how they were measured."""

    version: int = VERSION
    model: str
    engine: str  # its name, as "vLLM"
    engine_version: str = ""
    settings: dict[str, Any] = {}  # of the sampling, as they were sent
    text_digest: str = ""  # SHA-256 of the text that is scored
    text_ids: tuple[tuple[int, ...], ...] = ()  # the text's segments by the reference's tokenizer


class AnswerLine(msgspec.Struct, frozen=True, tag="answer", tag_field="line"):
    """An answer, and the log-probabilities that the server of these contents gives it as a prompt."""

    answer: SampledAnswer
    own: TokenScores | None = None  # None: it was not scored, and the noise floor is unknown


class SegmentLine(msgspec.Struct, frozen=True, tag="segment", tag_field="line"):
    """A segment of the text with the server's scores."""

    segment: TextSegment


class GreedyLine(msgspec.Struct, frozen=True, tag="greedy", tag_field="line"):
    """The greedy answer to a prompt, of a server whose log-probabilities are not compared."""

    answer: GreedyAnswer


ReferenceLine = AnswerLine | SegmentLine | GreedyLine


@dataclass
class ReferenceContents:
    """What a server has sampled and scored, in the order in which it was appended: the lines of a file."""

    header: ReferenceHeader
    answers: list[AnswerLine] = field(default_factory=list)
    segments: list[TextSegment] = field(default_factory=list)
    greedy: list[GreedyAnswer] = field(default_factory=list)
    digest: str = ""  # SHA-256 of the whole lines, uncompressed; "": they are in no file
    whole_bytes: int = 0  # of the file: up to the end of its last whole member
    damage: str = ""  # why what follows is not used; "" where nothing does

    @property
    def tokens(self) -> int:
        """How many tokens all answers have."""
        return sum(len(line.answer.token_ids) for line in self.answers)

    @property
    def text(self) -> TokenizedText:
        """The text by the server's tokenizer; without sizes where it was not scored."""
        return TokenizedText(self.header.text_ids, tuple(segment.scored_bytes for segment in self.segments))

    def append(self, lines: Iterable[ReferenceLine]) -> None:
        """Append answers, segments and greedy answers."""
        for line in lines:
            if isinstance(line, AnswerLine):
                self.answers.append(line)
            elif isinstance(line, SegmentLine):
                self.segments.append(line.segment)
            else:
                self.greedy.append(line.answer)


class PairedAnswers(NamedTuple):
    """Answers that one server has sampled, with its own scores of each and the other server's."""

    answers: list[SampledAnswer]
    own: list[TokenScores | None]
    other: list[TokenScores | None]

    @classmethod
    def of(cls, sampled: ReferenceContents, scores: ReferenceContents) -> PairedAnswers:
        """Pair answers of one server with the other's scores, in the order of these; others are left out."""
        own = {line.answer: line.own for line in sampled.answers}
        lines = [line for line in scores.answers if line.answer in own]
        answers = [line.answer for line in lines]
        return cls(answers, [own[answer] for answer in answers], [line.own for line in lines])


class ReferenceFile(ReferenceContents):
    """Contents that are written to a file too: a line per answer and segment, kept from the first one on."""

    def __init__(self, path: Path, header: ReferenceHeader) -> None:
        """Open the file at `path`, kept up to its last whole member, or made with `header`.

        Raises UsageError where it is not a reference file or has another header, MeasureError where it
        cannot be written, or another process writes it.
        """
        super().__init__(header)
        self.path = path
        with self._writing():
            self._handle = files.open_refusing_link(path, _FLAGS)
        try:
            self._take_over()
        except (UsageError, MeasureError):
            self.close()
            raise

    def _take_over(self) -> None:
        """Lock the file, cut it to its last whole member, and take what it has; a new one gets the header."""
        with contextlib.suppress(OSError):  # of a file system without locks
            try:
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                why = f"another process writes {self.path}: wait for it, or name another file"
                raise MeasureError(why) from None
        kept = read_reference(self.path) if os.fstat(self._handle).st_size else None
        if kept is not None and kept.header != self.header:
            raise UsageError(
                f"{self.path} is of another {_name_changes(kept.header, self.header)}: name another file, or "
                "remove it"
            )
        with self._writing():
            os.ftruncate(self._handle, 0 if kept is None else kept.whole_bytes)
            os.lseek(self._handle, 0, os.SEEK_END)
        if kept is None:
            self._write_member(msgspec.json.encode(self.header) + b"\n")
        else:
            self.answers, self.segments, self.greedy = kept.answers, kept.segments, kept.greedy

    def append(self, lines: Iterable[ReferenceLine]) -> None:
        """Append lines, on the disk when this returns: a member, or several; raises MeasureError if not."""
        data, rows = bytearray(), list(lines)
        for line in rows:
            data += msgspec.json.encode(line) + b"\n"
            if len(data) > _MEMBER_BYTES:
                self._write_member(data)
                data = bytearray()
        if data:
            self._write_member(data)
        super().append(rows)

    def close(self) -> None:
        """Close the file; what was appended stays."""
        os.close(self._handle)

    def _write_member(self, data: bytes | bytearray) -> None:
        packer = zlib.compressobj(wbits=_GZIP)
        view = memoryview(packer.compress(data) + packer.flush())
        with self._writing():
            while view:
                view = view[os.write(self._handle, view) :]
            os.fdatasync(self._handle)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            why = f"cannot write {self.path}: {error.strerror or error}: name another file"
            raise MeasureError(why) from None


def read_reference(path: Path, most_bytes: int | None = None) -> ReferenceContents:
    """Read the whole lines of a reference file, up to the first that is cut off or damaged.

    Raises UsageError where the file cannot be read, is no reference file, is of another version, or has more
    than `most_bytes` uncompressed.
    """
    try:
        with open_regular(path) as file:
            return _read_members(file, path, most_bytes)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}: name a reference file") from None


def _read_members(file: BinaryIO, path: Path, most_bytes: int | None) -> ReferenceContents:
    """Read whole members before a damaged one; raises UsageError without a header, or over `most_bytes`."""
    found: ReferenceContents | None = None
    digest, plain, damage = hashlib.sha256(), 0, ""
    line = msgspec.json.Decoder(ReferenceLine)
    try:
        for data, end in _inflate_members(file):
            plain += len(data)
            if most_bytes is not None and plain > most_bytes:
                raise UsageError(f"{path} has more than {most_bytes >> 20} MiB uncompressed")
            rows = data.splitlines()
            if found is None:
                found = ReferenceContents(_read_header(rows.pop(0) if rows else b"", path))
            found.append([_check_line(line.decode(row)) for row in rows])  # all of a member, or none
            digest.update(data)
            found.whole_bytes = end
    except (zlib.error, EOFError, msgspec.DecodeError) as error:
        damage = str(error) if isinstance(error, EOFError) else f"it is damaged ({error})"
    if found is None:
        raise UsageError(f"{path} {_FOREIGN}")
    found.digest, found.damage = digest.hexdigest(), damage
    return found


def _read_header(row: bytes, path: Path) -> ReferenceHeader:
    """Read the header; raises UsageError for another version, or what is no header."""
    try:
        version = msgspec.json.decode(row, type=dict[str, Any]).get("version")
        if isinstance(version, int) and version != VERSION:
            raise UsageError(
                f"{path} is of version {version}, this loadgen reads {VERSION}: sample the reference again"
            )
        return msgspec.json.decode(row, type=ReferenceHeader)
    except msgspec.DecodeError:
        raise UsageError(f"{path} {_FOREIGN}") from None


def _name_changes(kept: ReferenceHeader, wanted: ReferenceHeader) -> str:
    """Name the fields in which two headers differ, with both values of short ones; "tokenizer" if none."""
    settings = kept.settings.keys() | wanted.settings.keys()
    pairs = {
        "model": (kept.model, wanted.model),
        "engine": (kept.engine, wanted.engine),
        "engine version": (kept.engine_version, wanted.engine_version),
        **{name: (kept.settings.get(name), wanted.settings.get(name)) for name in sorted(settings)},
    }
    found = [f"{name} ({one}, not {two})" for name, (one, two) in pairs.items() if one != two]
    found += ["text"] * (kept.text_digest != wanted.text_digest)
    return ", ".join(found) or "tokenizer"


def _check_ids(ids: Sequence[int]) -> None:
    if not ids or min(ids) < 0 or max(ids) > _MOST_ID:
        raise msgspec.ValidationError("token ids are none of a vocabulary")


def _check_line(line: ReferenceLine) -> ReferenceLine:
    """Return a line whose columns are as long as its token ids; raises msgspec.ValidationError otherwise."""
    if isinstance(line, SegmentLine):
        segment = line.segment
        _check_ids(segment.token_ids)
        if len(segment.scores.logprobs) != len(segment.token_ids) - 1 or segment.scored_bytes < 1:
            raise msgspec.ValidationError("a segment of text is not scored")
        return line
    if isinstance(line, GreedyLine):
        return line
    answer, count = line.answer, len(line.answer.token_ids)
    _check_ids(answer.prompt_ids)
    if count:  # an answer may end before its first token
        _check_ids(answer.token_ids)
    columns = [answer.logprobs, answer.top, None if line.own is None else line.own.logprobs]
    if any(column is not None and len(column) != count for column in columns):
        raise msgspec.ValidationError("a response has columns of different lengths")
    return line


def _inflate_members(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Yield each gzip member's plain bytes and the offset of its end; raises zlib.error, EOFError."""
    packed, end = b"", 0
    while packed or (packed := file.read(_PIECE)):
        inflater, parts, size = zlib.decompressobj(wbits=_GZIP), [], 0
        while not inflater.eof:
            held = inflater.unconsumed_tail or packed or file.read(_PIECE)
            if not held:
                raise EOFError("its last line is cut off")
            packed = b""
            parts.append(inflater.decompress(held, _PIECE))
            size += len(parts[-1])
            if size > _MOST_BYTES:
                raise zlib.error(f"a member is longer than {_MOST_BYTES >> 20} MiB")
        packed = inflater.unused_data
        end = file.tell() - len(packed)
        yield b"".join(parts), end
