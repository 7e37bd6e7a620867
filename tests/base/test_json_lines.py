"""Lines: rows of a file are found once, and every file that holds none is refused by name."""

from __future__ import annotations

import gzip
import os
import random
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

from builders.loops import loop_over
from loadgen.base import json_lines
from loadgen.base.errors import UsageError
from loadgen.base.json_lines import Lines, OpenedFile

FLAG = "--dataset-path"


class Named(msgspec.Struct):
    name: str


def written(directory: Path, raw: bytes) -> str:
    path = directory / "data.jsonl"
    path.write_bytes(raw)
    return str(path)


@loop_over(
    ("raw", "rows", "numbers"),
    [
        (b'{"name": "a"}\n{"name": "b"}\n', [b'{"name": "a"}', b'{"name": "b"}'], [1, 2]),
        (b'{"name": "a"}', [b'{"name": "a"}'], [1]),
        (b"\n\n1\n\n2\n \n\t\r\n3", [b"1", b"2", b"3"], [3, 5, 8]),
        (b"1\r\n2\r\n", [b"1\r", b"2\r"], [1, 2]),
        (b"\xef\xbb\xbf1\n2", [b"1", b"2"], [1, 2]),
        ("é\n€\n😀".encode(), ["é".encode(), "€".encode(), "😀".encode()], [1, 2, 3]),
    ],
)
@loop_over("chunk_bytes", [1, 3, 1 << 22])
def test_rows_are_found_whatever_the_chunks(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    raw: bytes,
    rows: list[bytes],
    numbers: list[int],
    chunk_bytes: int,
) -> None:
    monkeypatch.setattr(json_lines, "_CHUNK_BYTES", chunk_bytes)
    path = written(tmp_path, raw)
    found = Lines.open(path, FLAG)
    assert [found[i] for i in range(len(found))] == rows == list(found.read_rows())
    assert [found.name_row(i) for i in range(len(found))] == [f"{path} row {number}" for number in numbers]


def test_a_packed_file_is_read_as_its_text(tmp_path: Path) -> None:
    text = b'{"a": 1}\n{"a": 2}\n'
    paths = [tmp_path / "plain", tmp_path / "packed", tmp_path / "in parts"]
    for path, raw in zip(
        paths, (text, gzip.compress(text), gzip.compress(text[:9]) + gzip.compress(text[9:])), strict=True
    ):
        path.write_bytes(raw)
        lines = Lines.open(str(path), FLAG)
        assert list(lines.read_rows()) == [b'{"a": 1}', b'{"a": 2}']
        assert lines.name_row(1) == f"{path} row 2"
        assert lines.digest() == Lines.open(str(paths[0]), FLAG).digest()


def test_a_packed_file_is_unpacked_no_further_than_it_is_read(tmp_path: Path) -> None:
    text = json_lines._BOM + random.Random(1).randbytes(1 << 19).hex().encode()
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(text)[:-99])
    file = OpenedFile(str(path), FLAG)
    assert next(file.read_pieces(100)) == text[3:103]
    with pytest.raises(UsageError, match="is damaged or cut short"):
        assert file.size


@loop_over(
    ("raw", "why"),
    [
        (b"", ": is empty: give a file with a request in each line"),
        (b"\n \n\r\n", ": holds no rows: every line is blank"),
        (b"\x1f\x8b\x08\x00", ": is damaged or cut short: gzip cannot unpack it"),
        (gzip.compress(b"{}\n{}\n")[:-9], ": is damaged or cut short: gzip cannot unpack it"),
        (gzip.compress(b""), ": is empty: give a file with a request in each line"),
        (gzip.compress(b"\xff\xfe{\0}\0"), ": is UTF-16: convert it to UTF-8"),
        (b"\x28\xb5\x2f\xfd\x00", ": is compressed (zstd): unpack it first"),
        (b"\xff\xfe{\0}\0", ": is UTF-16: convert it to UTF-8"),
        (b'{"a": 1}\n{"a": "\xe9"}\n', " row 2: is not UTF-8: convert the file to it"),
        (b'{"a": 1}\n{"a": 1}\n\xe2\x82', " row 3: is not UTF-8: convert the file to it"),
        (b'{"a": 1}\n"\xed\xa0\x80"\n', " row 2: is not UTF-8: convert the file to it"),
    ],
)
@loop_over("chunk_bytes", [2, 1 << 22])
def test_a_file_that_is_no_text_of_lines_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raw: bytes, why: str, chunk_bytes: int
) -> None:
    monkeypatch.setattr(json_lines, "_CHUNK_BYTES", chunk_bytes)
    path = written(tmp_path, raw)
    with pytest.raises(UsageError) as error:
        Lines.open(path, FLAG)
    assert str(error.value) == f"{FLAG} {path}{why}"


def test_short_lines_are_read_in_large_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    read = json_lines.OpenedFile.read

    def counted(file: json_lines.OpenedFile, begin: int, size: int) -> bytes:
        reads.append(size)
        return read(file, begin, size)

    monkeypatch.setattr(json_lines.OpenedFile, "read", counted)
    found = Lines.open(written(tmp_path, b"1\n \n\t2\t\n" * 100_000), FLAG)
    assert len(found) == 200_000
    assert len(reads) < 10


@loop_over("blanks", [b" \t\r\v\f", b"\r", b" " * 7])
@loop_over("chunk_bytes", [1, 9, 1 << 22])
def test_a_short_line_of_blanks_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blanks: bytes, chunk_bytes: int
) -> None:
    monkeypatch.setattr(json_lines, "_CHUNK_BYTES", chunk_bytes)
    path = written(tmp_path, b"1\n" + blanks + b"\n" + blanks[:6] + b"2\n" + blanks)
    found = Lines.open(path, FLAG)
    assert [found[i] for i in range(len(found))] == [b"1", blanks[:6] + b"2"]


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name, why in [
        ("none.jsonl", "No such file or directory: give a file that can be read"),
        ("", "is a directory: give a file"),
        ("fifo", "is not a regular file: give one"),
    ]:
        with pytest.raises(UsageError) as error:
            Lines.open(str(tmp_path / name), FLAG)
        assert str(error.value) == f"{FLAG} {tmp_path / name}: {why}"


def test_a_line_of_a_gigabyte_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(b"{}\n")
    os.truncate(path, 1 << 30)
    with pytest.raises(UsageError, match="row 2: is longer than 64 MiB"):
        Lines.open(str(path), FLAG)


@loop_over(
    ("row", "why"),
    [
        (b'{"name": 1}', "name is 1: give a text"),
        (b"[1]", "is [1]: give an object"),
        (b'{"name": "b"', "is not valid JSON: Expecting ',' delimiter (column 13)"),
        (b'{"name": NaN}', "is not valid JSON: name is NaN, no number of JSON"),
        (
            b'{"a": {"b": [1, [{"c.d": -Infinity}]]}, "e": NaN}',
            "is not valid JSON: a.b[1][0].c.d is -Infinity, no number of JSON",
        ),
        (b"NaN", "is not valid JSON: it is NaN, no number of JSON"),
        (b'{"other": {"b": 1e999}, "name": -1e999}', "name is -1e999: give a number that a float can hold"),
        (b'{"name": "\\ud800"}', "is not valid JSON: it holds half of a surrogate pair"),
        (b'{"other": ' + b"[" * 100_000, "is nested too deep"),
    ],
)
def test_a_row_that_cannot_be_decoded_is_named(tmp_path: Path, row: bytes, why: str) -> None:
    path = written(tmp_path, b'{"name": "a"}\n\n' + row + b"\n")
    decoded = Lines.open(path, FLAG).decode_rows(Named)
    assert next(decoded) == Named("a")
    with pytest.raises(UsageError) as error:
        next(decoded)
    assert str(error.value) == f"{FLAG} {path} row 3: {why}"


def test_a_file_that_changes_is_not_read_on(tmp_path: Path) -> None:
    path = written(tmp_path, b"1\n2\n")
    found = Lines.open(path, FLAG)
    Path(path).write_bytes(b"1\n2\n3\n")
    with pytest.raises(UsageError, match="changed while it was read"):
        found[0]


def test_the_digest_is_of_the_bytes(tmp_path: Path) -> None:
    path = written(tmp_path, b"1\n2\n")
    first = Lines.open(path, FLAG).digest()
    assert first == Lines.open(path, FLAG).digest() != Lines.open(written(tmp_path, b"1\n3\n"), FLAG).digest()


class _Nested(msgspec.Struct):
    t: Annotated[float, msgspec.Meta(gt=0, lt=10.5)] = 1.0
    flag: bool | None = None


class _Row(msgspec.Struct, rename={"size": "in.put"}):
    name: Annotated[str, msgspec.Meta(min_length=1)] = "a"
    many: Annotated[tuple[int, ...], msgspec.Meta(max_length=2)] = ()
    nested: list[_Nested] = []
    by_name: dict[str, int] = {}
    size: int = 0


@loop_over(
    ("row", "kind", "name", "text"),
    [
        (b'{"nested": [{}, {"t": 0.0}]}', _Row, "", "nested[1].t is 0.0: give more than 0"),
        (b'{"nested": [{"t": 10.5}]}', _Row, "", "nested[0].t is 10.5: give less than 10.5"),
        (b'{"nested": [{"flag": 1}]}', _Row, "row", "row.nested[0].flag is 1: give true or false"),
        (b'{"name": ""}', _Row, "", 'name is "": it must not be empty'),
        (b'{"name": [1,  2]}', _Row, "", "name is [1,  2]: give a text"),
        (b'{"name": {"' + b"a" * 90 + b'": 1}}', _Row, "", f'name is {{"{"a" * 38}…: give a text'),
        (b'{"by_name": {"a": "b"}}', _Row, "", "by_name[...]: give a whole number"),
        (b'{"in.put": "b"}', _Row, "", "in.put: give a whole number"),
        (b'{"many": [1, 2, 3]}', _Row, "", "many: Expected `array` of length <= 2"),
        (b"5", _Row, "", "is 5: give an object"),
        (b"5", str | list[int], "prompt", "prompt is 5: give a text or a list"),
        (b"null", float, "t", "t is null: give a number"),
    ],
)
def test_a_value_is_shown_with_what_to_give(row: bytes, kind: Any, name: str, text: str) -> None:
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.json.decode(row, type=kind)
    assert json_lines.explain_fault(raised.value, row, name) == text
