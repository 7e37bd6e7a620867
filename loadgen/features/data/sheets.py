"""Sheets: files of columns, CSV and Parquet, as the rows of JSON that they stand for."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import msgspec

from loadgen.base.files import expand_path
from loadgen.base.json_lines import MOST_ROW_BYTES, Lines, OpenedFile, SpooledFile
from loadgen.base.parsing import MOST_TOKENS
from loadgen.base.text import describe_install, quote_value
from loadgen.features.data import row_kinds

_PARQUET = b"PAR1"  # the first bytes of the file
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_BATCH_ROWS = 1024
_PROMPT, _LENGTH = "prompt", "output_tokens"
_HEADER_ROW = 1
_NO_PARQUET = f"is Parquet, which needs pyarrow: {describe_install('parquet')}"


def is_sheet(file: OpenedFile) -> bool:
    """Whether a file is Parquet, or CSV by its name or its column `prompt`."""
    if file.read(0, len(_PARQUET)) == _PARQUET:
        return True
    if file.read_first_byte() in b"{[":
        return False
    names = file.read(file.begin, 4096).partition(b"\n")[0].split(b",")
    return _find_separator(file) is not None or _PROMPT.encode() in [name.strip(b' "\r') for name in names]


def convert_rows(file: OpenedFile) -> Lines:
    """Convert a sheet to lines of JSON, one key per column; raises UsageError that names file and row.

    Of Parquet all columns, those left out of a row that are null in it. Of CSV those of prompts: `prompt` and
    `output_tokens`, whose first row is the header.
    """
    if file.read(0, len(_PARQUET)) == _PARQUET:
        return Lines(SpooledFile(file.path, file.flag, _convert_parquet_rows(file), file.digest))
    # Raised from 128 KiB a cell; here, not where rows are made: an error keeps that generator from its end.
    before = csv.field_size_limit(MOST_ROW_BYTES)
    try:
        rows, first_row = _convert_csv_rows(file), _HEADER_ROW + 1
        return Lines(SpooledFile(file.path, file.flag, rows, file.digest, first_row))
    finally:
        csv.field_size_limit(before)


def _find_separator(file: OpenedFile) -> str | None:
    return _SEPARATORS.get(PurePath(file.path).suffix.lower())


def _convert_csv_rows(file: OpenedFile) -> Iterator[bytes]:
    """Yield each row of CSV as JSON of its prompt, and of its length if it has one; b"" for a blank row."""
    cells = _read_csv_rows(file)
    names = [name.strip() for name in next(cells, [])]
    try:
        kind = row_kinds.find_kind(names)
    except ValueError as error:
        raise file.refusal(str(error), _HEADER_ROW) from None
    if kind != row_kinds.PROMPTS:
        raise file.refusal(f"is CSV of {kind}: give them as JSONL", _HEADER_ROW)
    if why := row_kinds.explain_unread(names, kind):
        raise file.refusal(why, _HEADER_ROW)
    twice = next((name for name, times in Counter(names).items() if times > 1), None)
    if twice is not None:
        raise file.refusal(f"has the column {quote_value(twice)} twice", _HEADER_ROW)
    prompt, length = names.index(_PROMPT), names.index(_LENGTH) if _LENGTH in names else None
    for number, row in enumerate(cells, _HEADER_ROW + 1):
        if not row:
            yield b""
            continue
        if len(row) != len(names):
            raise file.refusal(f"has {len(row)} cells, and the header {len(names)}", number)
        fields: dict[str, Any] = {_PROMPT: row[prompt]}
        if cell := "" if length is None else row[length].strip():
            if not (cell.isascii() and cell.isdecimal() and len(cell) <= len(str(MOST_TOKENS))):
                raise file.refusal(f"has {quote_value(cell)} as {_LENGTH}: give 1 to {MOST_TOKENS}", number)
            fields[_LENGTH] = int(cell)
        yield msgspec.json.encode(fields)


def _read_csv_rows(file: OpenedFile) -> Iterator[list[str]]:
    """Yield the cells of each row, the header too; raises UsageError that names the row."""
    number, text = 0, map(bytes.decode, file.read_lines())
    try:
        for row in csv.reader(text, delimiter=_find_separator(file) or ",", strict=True):
            number += 1
            yield row
    except csv.Error as error:
        raise file.refusal(f"is not valid CSV: {error}", number + 1) from None
    except UnicodeDecodeError:
        raise file.refusal("is not UTF-8: convert the file to it", number + 1) from None


def _convert_parquet_rows(file: OpenedFile) -> Iterator[bytes]:
    """Yield each row as JSON of its columns that are not null; raises UsageError, also without pyarrow."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise file.refusal(_NO_PARQUET) from None
    number = 0
    try:
        with parquet.ParquetFile(expand_path(file.path)) as table:
            for batch in table.iter_batches(_BATCH_ROWS):
                for row in batch.to_pylist():
                    number += 1
                    kept = {key: value for key, value in row.items() if value is not None}
                    try:
                        encoded = msgspec.json.encode(kept)
                    except (TypeError, ValueError, OverflowError) as error:
                        raise file.refusal(f"cannot be JSON: {error}", number) from None
                    yield encoded
    except (OSError, pyarrow.ArrowException) as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise file.refusal(f"is not valid Parquet: {why}") from None
