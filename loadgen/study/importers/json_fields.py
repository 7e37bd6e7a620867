"""JSON fields: an untrusted file as text, its JSON objects, and their parts, of any type."""

from __future__ import annotations

import codecs
import csv
import errno
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from loadgen.base import untrusted
from loadgen.base.errors import UsageError
from loadgen.base.parsing import read_figure
from loadgen.base.untrusted import read_mapping
from loadgen.figures.figure_table import COMMON
from loadgen.report.load_identity import Load
from loadgen.study.run_summary import Reported, describe_simulation

_BEGIN = re.compile(r"[^\s,]")
_UNSET = "max_concurrency"  # null: there was no limit
_FIGURE = re.compile(r"_ms$|throughput|speed")
RANKS = (90, 95, 99)
# Names that clients have for a statistic; a percentile is p99, 99, p(99), p99.9 or p99p9.
_STATISTICS = {
    **dict.fromkeys(("mean", "avg", "average"), "mean"), **dict.fromkeys(("median", "med", "p50"), "median"),
    **dict.fromkeys(("std", "std_dev", "stddev"), "std"), **dict.fromkeys(("min", "fastest"), "min"),
    **dict.fromkeys(("max", "slowest"), "max"),
}  # fmt: skip
_RANK = re.compile(r"[pP]?\(?(\d{1,2})(?:[.p](\d{1,3}))?\)?")
_NEXT = re.compile(r"\n[^\S\n]*(?=[{\[])")
_MOST_BROKEN = 200  # parts of a file that are not JSON: after each the next one is searched
_LONGEST_WORD = 1000  # characters of a name
_MOST_DIGITS = 18  # of a count that is written as text
_FAR_TOKENS = 0.05
Reader = Callable[[object], Any]  # of the value of a field: None where it is not one
# Field → reader, and the places that may have it.
Fields = Mapping[str, tuple[Reader, *tuple[str, ...]]]


class ClientFormat(msgspec.Struct, frozen=True):
    """The JSON documents of one client: what every file of them has one of, and how they are read."""

    name: str
    marks: tuple[bytes, ...]
    is_result: Callable[[Mapping[str, Any]], bool]  # whether a document is one
    read_runs: Callable[[Mapping[str, Any], str], Iterator[Reported]]  # of a document, by its source


class JsonDocument(msgspec.Struct, frozen=True):
    """One object, and the line it begins at; `error` is why a part of the file could not be read."""

    line: int
    value: dict[str, Any]
    error: str = ""
    last: bool = False  # nothing after it was read


def read_documents(text: str) -> Iterator[JsonDocument]:
    """Yield every object of a text: one, a list of them, or one after the other; NaN is a number.

    What is cut off or not valid is a document with an error; those after it are still read, up to 200 errors.
    """
    decoder, at, line, counted, broken = json.JSONDecoder(parse_int=parse_whole), 0, 1, 0, 0
    while (begin := _BEGIN.search(text, at)) is not None:
        at = begin.start()
        line, counted = line + text.count("\n", counted, at), at
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            reason = str(error).partition(":")[0].lower()
            broken += 1
            following = _NEXT.search(text, at)
            if broken == _MOST_BROKEN and following is not None:
                error_text = f"the {broken}th part that is not valid JSON: the rest was not read"
                yield JsonDocument(line, {}, error_text, last=True)
                return
            yield JsonDocument(line, {}, f"not valid JSON, or cut off: {reason}")
            if following is None:
                return
            at = following.end()
            continue
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict):
                yield JsonDocument(line, item)


def parse_whole(digits: str) -> int | float:
    """Parse a whole number; one of over 18 digits is a float, of hundreds infinite, which is no figure."""
    return int(digits) if len(digits) <= _MOST_DIGITS else float(digits)


def find_value(value: object, place: str) -> Any:
    """Return the value at a dotted place of an object, as `spec.data.0.tokens`; None if there is none."""
    for key in place.split("."):
        if isinstance(value, list) and key.isdecimal():
            value = value[int(key)] if int(key) < len(value) else None
        else:
            value = read_mapping(value).get(key)
    return value


def find_first(document: object, read: Reader, *places: str) -> Any:
    """Return the first value at these places that `read` reads, neither None nor ""; else None."""
    values = (read(find_value(document, place)) for place in places)
    return next((value for value in values if value is not None and value != ""), None)


def read_fields(document: object, fields: Fields) -> dict[str, Any]:
    """Read a table's fields from a document, each from the first of its places that has it; else None."""
    return {key: find_first(document, read, *places) for key, (read, *places) in fields.items()}


def read_reported_number(value: object) -> float | None:
    """Return a number as a client reports it, NaN and infinity too; None of anything else."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def read_count(value: object) -> int | None:
    """Return a whole number from zero on; None of anything else."""
    figure = read_figure(value)
    return int(figure) if figure is not None and figure >= 0 and figure == int(figure) else None


def count_failures(errors: object) -> int | None:
    """Count the failed requests of a list of each one's error, "" or null of one that did not fail."""
    return sum(1 for error in errors if error) if isinstance(errors, list) and errors else None


def list_other_counts(client: str, own: float | None, server: float | None, times: int = 1) -> Iterator[str]:
    """Yield a remark if a client's tokens and the server's, totals or means of `times`, are 5 % apart."""
    if own and server and abs(own / server - 1) > _FAR_TOKENS:
        yield (
            f"{client}: its tokenizer counted {own * times:.0f} generated tokens, over which its rates and "
            f"TPOT are; the server reported {server * times:.0f}"
        )


def read_word(value: object) -> str:
    """Return a text's first 1000 characters without blanks around them; "" of anything else."""
    return value[:_LONGEST_WORD].strip() if isinstance(value, str) else ""


def parse_count(text: str) -> int | None:
    """Parse a count that is written as digits; None of anything else, and of more than 18 of them."""
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None


def parse_number(text: str) -> float | None:
    """Parse a number as a program writes it, NaN and infinity too; None of anything else."""
    try:
        return float(text)
    except ValueError:
        return None


def read_rate(value: object) -> float | None:
    """Return requests per second, infinite for Infinity, "inf" or "Infinity"; None of anything else."""
    if isinstance(value, str) and value.lower() in ("inf", "infinity"):
        return math.inf
    return math.inf if value == math.inf else read_figure(value)


def format_rate(value: object) -> float | str | None:
    """Return the rate as vLLM's files have it: the word "inf" of an infinite one; None if not a rate."""
    figure = read_rate(value)
    return "inf" if figure == math.inf else figure


def parse_local_time(parse: Callable[[str], datetime], written: object) -> datetime | None:
    """Parse the time that a client wrote, in this machine's zone where it gives none; None if invalid."""
    try:
        return parse(read_word(written)).astimezone()
    except (ValueError, OverflowError, OSError):  # a year beyond this machine's clock
        return None


def read_statistics(suffix: str, values: object, times: float = 1.0) -> dict[str, float]:
    """Read the statistics of an object, times a factor, as mean_SUFFIX, p99_SUFFIX and so on."""
    found: dict[str, float] = {}
    for name, value in read_mapping(values).items():
        number, ranked = read_reported_number(value), _RANK.fullmatch(name)
        word = _STATISTICS.get(name, "")
        if not word and ranked is not None:
            rank = f"{int(ranked[1])}" + (f".{ranked[2]}" if (ranked[2] or "").strip("0") else "")
            word = {"0": "", "50": "median"}.get(rank, f"p{rank}")
        if word and number is not None:
            found.setdefault(f"{word}_{suffix}", number * times)
    return found


def compute_statistics(key: str, values_ms: Iterable[float]) -> dict[str, float]:
    """Compute mean, median, standard deviation and percentiles under vLLM's keys; {} without values."""
    each = np.fromiter(values_ms, float)
    if not len(each):
        return {}
    figures = {"mean": each.mean(), "median": np.median(each), "std": each.std()}
    figures |= {f"p{rank}": np.percentile(each, rank) for rank in RANKS}
    return {f"{name}_{key}_ms": float(value) for name, value in figures.items()}


def make_run(
    client: str,
    name: str,
    figures: Mapping[str, Any],
    load: Load,
    source: str,
    remarks: Iterable[str] = (),
    simulated: str = "",
    **facts: Any,
) -> Reported:
    """Make the run of a client's file, by its stem without a name, with a remark on each latency of 0.

    `facts` are other fields of it. Raises UsageError if it has no figure.
    """
    measured, empty = drop_unmeasured(figures)
    if not has_figures(measured):
        raise UsageError(f"{source} has no figures")
    every = *([describe_simulation(simulated)] if simulated else []), *remarks, *empty
    facts |= {"simulated": simulated, "remarks": every}
    return Reported(name or Path(source).stem, measured, load, source, client, **facts)


def make_client_load(fields: dict[str, Any]) -> Load:
    """Make a load of its fields; without a rate a closed loop gets an infinite one, set in `fields` too."""
    if fields.get("request_rate_per_s") is None and fields.get("max_concurrency"):
        fields["request_rate_per_s"] = math.inf
    return Load(**fields)


def drop_unmeasured(figures: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return figures without None (but of a limit) and latencies of mean 0, and a remark on each latency."""
    empty = [figure for figure in COMMON if is_zero(figures.get(figure.statistic("mean")))]
    unmeasured = tuple(f"_{figure.suffix}" for figure in empty)
    measured = {
        name: value
        for name, value in figures.items()
        if (value is not None or name == _UNSET) and not name.endswith(unmeasured)
    }
    return measured, [f"{figure.label} is 0: it was not measured" for figure in empty]


def has_figures(figures: Mapping[str, Any]) -> bool:
    """Whether a latency, throughput or speed among the figures is a number other than 0, or infinite."""
    return any(
        (figure := read_reported_number(value)) and not math.isnan(figure)
        for name, value in figures.items()
        if _FIGURE.search(name)
    )


def is_zero(value: object) -> bool:
    """Whether a figure is 0, and not -0.00, which is below zero."""
    figure = read_figure(value)
    return figure == 0 and math.copysign(1.0, figure) > 0


MOST_BYTES = 64 << 20  # of an untrusted file: parsed it takes ten times as much memory
MOST_RESULTS = 10_000  # of a file: each is compared with others
_PACKED = {
    b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2", b"7z\xbc\xaf\x27\x1c": "7-zip",
}  # fmt: skip
_MARKED = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16's, which is how it begins
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def read_file(path: Path) -> bytes:
    """Read a file's bytes; raises UsageError if it is empty, cannot be read, or is over 64 MiB."""
    raw = read_bounded(path)
    if not raw.strip():
        raise UsageError(f"{path} is empty")
    return raw


def read_bounded(path: Path, most: int = MOST_BYTES) -> bytes:
    """Read a regular file, at most `most` bytes; raises UsageError of a larger one, a pipe, a device."""
    try:
        return untrusted.read_file_bytes(path, most)
    except OSError as error:
        if error.errno == errno.EFBIG:
            why = f"is larger than {most >> 20} MiB: give it in parts, or without its requests"
            raise UsageError(f"{path} {why}") from None
        raise UsageError(f"{path}: {error.strerror or error}") from None


def find_next_to(paths: Iterable[Path], pattern: re.Pattern[str]) -> str:
    """Find the first group of a pattern in the first of some text files that has it; "" if none does."""
    for path in paths:
        try:
            found = pattern.search(decode_text(read_bounded(path), path))
        except UsageError:
            continue
        if found is not None:
            return found[1].strip()
    return ""


def read_csv_rows(text: str, path: Path, delimiter: str = ",") -> Iterator[tuple[int, list[str]]]:
    """Yield line number and cells of each CSV row that is not empty; raises UsageError naming `path`."""
    reader = csv.reader(io.StringIO(text.lstrip("\n")), delimiter=delimiter)
    try:
        yield from ((reader.line_num, cells) for cells in reader if cells)
    except csv.Error as error:
        raise UsageError(f"{path}:{reader.line_num}: not a valid table: {error}") from None


def check_results(path: Path, count: int) -> None:
    """Raise UsageError if the file at `path` has over 10,000 results."""
    if count > MOST_RESULTS:
        raise UsageError(f"{path} has more than {MOST_RESULTS} results: give it in parts")


def decode_text(raw: bytes, path: Path) -> str:
    """Decode by byte-order mark, else UTF-8, else Latin-1; UsageError if compressed, binary or damaged."""
    packed = next((name for magic, name in _PACKED.items() if raw.startswith(magic)), None)
    if packed is not None:
        raise UsageError(f"{path} is compressed ({packed}): unpack it first")
    mark, encoding = next((marked for marked in _MARKED if raw.startswith(marked[0])), (b"", ""))
    try:
        if mark:
            return raw[len(mark) :].decode(encoding)
        if b"\0" in raw[:8192]:
            raise UsageError(f"{path} is a binary file, not text")
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        if mark:
            raise UsageError(
                f"{path} begins as {encoding} and is not valid {encoding}: it is damaged"
            ) from None
        return raw.decode("latin-1")
