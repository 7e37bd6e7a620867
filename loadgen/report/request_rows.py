"""Request rows: a run's requests, a row each, as JSON lines, CSV or Parquet."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from loadgen.base.errors import UsageError
from loadgen.base.files import write_output
from loadgen.base.printing import escape_unencodable
from loadgen.base.text import describe_install, format_csv
from loadgen.features.attribution import attribution_section
from loadgen.features.images import image_figures
from loadgen.features.sessions import session_figures
from loadgen.features.speculation import speculation_figures
from loadgen.features.targets import target_figures
from loadgen.figures.figure_table import LATENCIES
from loadgen.figures.per_request import PerRequest
from loadgen.records.record import UNKNOWN
from loadgen.report import shape_figures
from loadgen.report.result_file import list_request_ids
from loadgen.report.run_directory import RequestColumn, Result
from loadgen.transport.failure import FailureKind

if TYPE_CHECKING:
    import pandas

REQUESTS = "requests"  # the file's name, before its form's ending
_ROWS_AT_ONCE = 4096
Row = dict[str, Any]
# The latencies of one request that are columns: those of a token first.
_TIMED = sorted((figure for figure in LATENCIES if figure.column), key=lambda figure: not figure.needs_tokens)

# The error of a failure without details: that of a failed request is never blank.
WORDS = {
    FailureKind.CONNECT: "no connection, or one that was lost before the request was sent",
    FailureKind.TIMEOUT: "--request-timeout passed",
    FailureKind.STALL: "--stall-timeout passed without a token",
    FailureKind.HTTP_STATUS: "the status is not 200",
    FailureKind.CONTEXT_LIMIT: "prompt and output are more than the model's context",
    FailureKind.RATE_LIMITED: "the server takes fewer requests or tokens a minute",
    FailureKind.IN_BAND: "the server reported an error inside the response",
    FailureKind.ABORTED: "the server stopped this request",
    FailureKind.TRUNCATED: "the response ended before its end",
    FailureKind.MALFORMED: "the response is not HTTP, server-sent events or the API's JSON",
    FailureKind.NOT_STREAMED: "one whole response, where a stream was asked for",
    FailureKind.UNNAMED: "a response without the id that the next turn needs (--assistant server)",
    FailureKind.EMPTY: "a complete response without a token",
    FailureKind.CANCELLED: "stopped while it was under way",
    FailureKind.USER_CANCELLED: "cancelled as planned (--cancel-rate)",
    FailureKind.MEMORY: "cut off, since the responses under way took too much memory",
    FailureKind.LOST: "the capturing process died while it was under way",
}


_HAS_BRANCHES = attrgetter("session_waits")
# Columns in order; times are CLOCK_MONOTONIC nanoseconds.
COLUMNS = (
    RequestColumn("index", "int64", "its place in the plan"),
    RequestColumn("request_id", "string", "the `x-request-id` that it carried; null if it was not kept"),
    RequestColumn("class", about='its class of a mix; "" without one', make=shape_figures.name_classes),
    RequestColumn("slot", "int64", "the connection slot"),
    RequestColumn("intended_ns", "int64", "when it was due (CLOCK_MONOTONIC, as every time)"),
    RequestColumn("sent_ns", "int64", "when it was sent; null if it never was"),
    RequestColumn("first_ns", "int64", "arrival of the first chunk with a token, also of failures"),
    RequestColumn("last_ns", "int64", "arrival of the last chunk with a token, also of failures"),
    RequestColumn("end_ns", "int64", "when the response was over"),
    *(
        RequestColumn(f"{figure.key}_ns", figure.column, f"{figure.label}, of successes only")
        for figure in _TIMED
    ),
    RequestColumn("input_tokens", "int64", "by usage, else as planned"),
    RequestColumn("output_tokens", "int64", "by usage, else as counted; of a failure, what had arrived"),
    RequestColumn("cached_tokens", "int64", "prompt tokens that the server took from its prefix cache"),
    RequestColumn(
        "steps",
        "int64",
        "of a server that speculates: chunks with tokens after the first, so tokens a step are "
        "(output_tokens − 1) / steps",
        attrgetter("speculates"),
        speculation_figures.list_steps,
    ),
    RequestColumn(
        "images",
        "int64",
        "with `--image-size` or `--image-dir`: its images",
        attrgetter("data.images"),
        image_figures.list_counts,
    ),
    RequestColumn(
        "image_tokens",
        "int64",
        "with these: its images' tokens, as the server counts",
        attrgetter("data.images"),
        image_figures.list_tokens,
    ),
    RequestColumn("finish_reason", "string", "as the server sent it"),
    RequestColumn("ok", "bool", "whether it succeeded"),
    RequestColumn("failure_kind", "string", '"" if it succeeded'),
    RequestColumn("http_status", "int64", "of the response"),
    RequestColumn("error", "string", 'never blank of a failure; "" if it succeeded'),
    RequestColumn("resends", "int64", "how often it was resent on a connection that the server had closed"),
    RequestColumn("session", "int64", "of sessions: which, from 0 in the plan", attrgetter("session_turns")),
    RequestColumn("turn", "int64", "of sessions: which turn, from 1", attrgetter("session_turns")),
    RequestColumn(
        "target",
        about="with several `--base-url`: the server that it went to",
        is_there=attrgetter("targets"),
        make=target_figures.name_targets,
    ),
    RequestColumn(
        "role", "string", "of agents: main, or its sub-agent's", _HAS_BRANCHES, session_figures.list_roles
    ),
    RequestColumn(
        "depth", "int64", "of agents: 0 on the main line", _HAS_BRANCHES, session_figures.list_depths
    ),
    RequestColumn(
        "critical",
        "int64",
        "of agents: 1 on the critical path of a finished session, else 0",
        _HAS_BRANCHES,
        session_figures.mark_critical_requests,
    ),
    *attribution_section.COLUMNS,
)


def _choose_columns(run: Result) -> list[RequestColumn]:
    return [column for column in COLUMNS if column.is_there(run.facts)]


def list_columns(run: Result) -> dict[str, str]:
    """Map a run's export columns to their types; sessions, classes and targets only if it has them."""
    return {column.name: column.kind for column in _choose_columns(run)}


def list_rows(run: Result) -> Iterator[list[Row]]:
    """Yield the exported requests in plan order, some thousand rows at a time to bound memory."""
    arrays, columns, records = list_numbers(run), _choose_columns(run), run.records
    texts = {column.name: column.make(run) for column in columns if column.make is not None}
    for begin in range(0, len(records), _ROWS_AT_ONCE):
        part = {name: column[begin : begin + _ROWS_AT_ONCE].tolist() for name, column in arrays.items()}
        batch, ids = [], list_request_ids(run.facts, records.index[begin : begin + _ROWS_AT_ONCE])
        for position, values in enumerate(zip(*part.values(), strict=True), begin):
            row = {name: None if value < 0 else value for name, value in zip(part, values, strict=True)}
            failure = records.failures[position]
            words = {
                "request_id": ids[position - begin],
                "finish_reason": records.finish_reasons[position],
                "ok": failure is None,
                "failure_kind": "" if failure is None else failure.kind.value,
                "error": "" if failure is None else failure.detail or WORDS[failure.kind],
                **{name: values[position] for name, values in texts.items()},
            }
            # Half a surrogate pair, which no file can hold, is written as its escape.
            row |= {
                name: escape_unencodable(word, "utf-8") if isinstance(word, str) else word
                for name, word in words.items()
            }
            batch.append({column.name: row[column.name] for column in columns})
        yield batch


def list_numbers(run: Result) -> dict[str, NDArray[Any]]:
    """Return the numeric export columns, one value per request; negative where there is none."""
    records, each = run.records, PerRequest.from_records(run.records, run.facts.ask())
    counts = np.diff(records.start)
    first_ns, last_ns = (np.full(len(records), UNKNOWN, np.int64) for _ in range(2))
    first_ns[counts > 0] = records.arrival_ns[records.start[:-1][counts > 0]]
    last_ns[counts > 0] = records.arrival_ns[records.start[1:][counts > 0] - 1]
    samples = {f"{figure.key}_ns": figure.samples(each) for figure in _TIMED}
    return {
        **({} if run.sessions is None else {"session": run.sessions.session, "turn": run.sessions.turn}),
        **{name: records.columns[name] for name in ("index", "slot", "cached_tokens", "resends")},
        "intended_ns": records.intended_ns,
        "sent_ns": np.where(records.sent, records.sent_ns, UNKNOWN),
        "first_ns": first_ns,
        "last_ns": last_ns,
        "end_ns": records.end_ns,
        **{name: np.where(has, values, UNKNOWN) for name, (values, has) in samples.items()},
        "input_tokens": each.input_tokens,
        "output_tokens": np.where(each.ok, each.output_tokens, records.output_tokens),
        "http_status": records.http_status,
        **{column.name: column.numbers(run) for column in _choose_columns(run) if column.numbers is not None},
    }


def list_arrays(run: Result) -> dict[str, NDArray[Any]]:
    """List the export columns as arrays, one value per request in plan order.

    Numbers are int64 (`tpot_ns`: float64), -1 where there is none; `ok` is bool, texts are object arrays.
    """
    numbers, columns = list_numbers(run), list_columns(run)
    others: dict[str, list[Any]] = {name: [] for name in columns if name not in numbers}
    for some in list_rows(run):
        for name, column in others.items():
            column += [row[name] for row in some]
    for name, values in others.items():
        if columns[name] == "int64":
            numbers[name] = np.array([UNKNOWN if value is None else value for value in values], np.int64)
        else:
            numbers[name] = np.array(values, bool if columns[name] == "bool" else object)
    return {name: numbers[name] for name in columns}


def make_frame(run: Result) -> pandas.DataFrame:
    """Make a DataFrame of the export columns, missing values as NA; raises UsageError without pandas."""
    if find_spec("pandas") is None:
        raise UsageError(f"to_pandas() needs the pandas extra: {describe_install('pandas')}")
    import pandas

    frame = pandas.DataFrame(list_arrays(run))
    for name, kind in list_columns(run).items():
        if kind == "int64":
            frame[name] = frame[name].astype("Int64").where(frame[name] >= 0)
        elif kind == "double":
            frame[name] = frame[name].where(frame[name] >= 0)
    return frame


def _write_jsonl(batches: Iterator[list[Row]], wanted: Mapping[str, str], file: IO[bytes]) -> None:
    for batch in batches:
        file.write("".join(json.dumps(row, allow_nan=False) + "\n" for row in batch).encode())


def _write_csv(batches: Iterator[list[Row]], wanted: Mapping[str, str], file: IO[bytes]) -> None:
    file.write(format_csv([wanted]).encode())
    for batch in batches:
        file.write(format_csv(row.values() for row in batch).encode())


def _write_parquet(batches: Iterator[list[Row]], wanted: Mapping[str, str], file: IO[bytes]) -> None:
    """Write batches as Parquet, `wanted` by name its types; raises UsageError without pyarrow."""
    try:
        import pyarrow  # an extra, and 40 MB
        from pyarrow import parquet
    except ImportError:
        raise UsageError(f"--parquet needs the parquet extra: {describe_install('parquet')}") from None
    schema = pyarrow.schema([(name, pyarrow.type_for_alias(kind)) for name, kind in wanted.items()])
    with parquet.ParquetWriter(file, schema) as writer:
        for batch in batches:
            writer.write_table(pyarrow.Table.from_pylist(batch, schema))


NAMES = {"jsonl": "JSON, a line each", "csv": "CSV", "parquet": "Parquet (the parquet extra)"}
# A file's ending chooses its form.
FORMS: dict[str, Callable[[Iterator[list[Row]], Mapping[str, str], IO[bytes]], None]] = {
    "jsonl": _write_jsonl, "csv": _write_csv, "parquet": _write_parquet,
}  # fmt: skip


def write_rows(run: Result, form: str, file: IO[bytes]) -> None:
    """Write a run's requests to an open file as a form of `FORMS`; raises UsageError, OSError."""
    FORMS[form](list_rows(run), list_columns(run), file)


def write_named(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Call `write` on a file that the user named, whole or not there; raises UsageError if that fails."""
    if not path.name or "\0" in path.name:
        raise UsageError(f"cannot write {str(path)!r}: not a file name; choose another --output")
    try:
        write_output(path, write)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}; choose another --output") from None


def write(run: Result, form: str, path: Path) -> None:
    """Write a run's requests as JSONL, CSV or Parquet (`form`) to a file; raises UsageError."""
    write_named(path, lambda file: write_rows(run, form, file))


def save(run: Result, directory: Path) -> Path:
    """Write `requests.jsonl` into a run's directory, for --save-requests; raises UsageError."""
    path = directory / f"{REQUESTS}.jsonl"
    write(run, "jsonl", path)
    return path
