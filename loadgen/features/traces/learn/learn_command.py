"""`loadgen data learn`: a log of a service becomes a workload without its texts, names and ids."""

from __future__ import annotations

import argparse
import gzip
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import IO, BinaryIO, NamedTuple, cast

from msgspec.structs import replace

from loadgen.base import parsing
from loadgen.base.clock import SECOND_NS
from loadgen.base.errors import ExitCode, UsageError
from loadgen.base.files import expand_path, write_output
from loadgen.base.parsing import Parser, integer_between, number_between, parse_arguments
from loadgen.base.passages import Passage, print_passages
from loadgen.base.printing import print_text
from loadgen.base.text import format_count, format_json
from loadgen.features.traces.learn import known_logs, log_rows
from loadgen.features.traces.learn.call_spool import CallSpool
from loadgen.features.traces.learn.calls import CUT, Call, CallEnd, LogFault, LogFile, Rows
from loadgen.features.traces.learn.learned_sessions import LearnedColumns, LearnedSessions, list_log_calls
from loadgen.features.traces.learn.log_rows import COLUMNS, parse_columns
from loadgen.features.traces.learn.prompt_blocks import BLOCK, PromptMeter, Salt, describe_counting
from loadgen.features.traces.workload import WorkloadHead, encode_row
from loadgen.figures.workloads import (
    Fidelity,
    LoadColumns,
    WorkloadFigures,
    compare_measured,
    measure_workload,
)
from loadgen.plan.tokenizers import load_tokenizer
from loadgen.run.live_display import choose_display

_PACKED = (".gz", ".gzip")
_MOST_COPIES = 1000
_INPUT_BYTES, _OUTPUT_BYTES = 4.0, 270.0  # of a token; vLLM's and SGLang's streams of chat have 240 to 300
_BYTES = number_between(0.1, 1e6)
_PACKING = 6
_MOST_NS = round(parsing.YEAR_S * SECOND_NS)  # of a log, and of a call
Columns = Mapping[str, str]
ROWS = "rows"


def learn_parser() -> argparse.ArgumentParser:
    """Make the parser of `loadgen data learn`."""
    parser = Parser(
        prog="loadgen data learn",
        allow_abbrev=False,
        description="Make a workload of a service's log: times, lengths, turns, shared prefixes as salted "
        "hashes, sampling and cancellations. No text, name or id of the log is in it. Nothing is sent.",
        epilog="The workload is a trace: loadgen bench --trace FILE.",
    )
    add = parser.add_argument
    add("log", metavar="LOG", help="the log, gzipped or not")
    add("-o", "--output", required=True, metavar="FILE", help="the workload; gzipped if it ends in .gz")
    listed = "; ".join(f"{name}: {form.summary}" for name, form in FORMS.items())
    forms = f"form of the log. {listed} (default: by its first lines)"
    add("--log-format", default="", choices=FORMS, help=forms)
    add("--columns", default="", metavar="A=B,…", help=f"the log's columns for {', '.join(COLUMNS)}")
    add("--path", default="", metavar="TEXT", help="read only requests of an access log with TEXT in a path")
    add("--tokenizer", metavar="DIR", help="directory or name of the model's tokenizer, which counts texts")
    add("--input-bytes", type=_BYTES, default=_INPUT_BYTES, metavar="N",
        help="bytes per token of requests of which only the size is known (default 4)")  # fmt: skip
    add("--output-bytes", type=_BYTES, default=_OUTPUT_BYTES, metavar="N",
        help="bytes per token of answers of known size alone (default 270, as in a stream)")  # fmt: skip
    add("--salt", metavar="TEXT", help="key of the hashes (default: random, and discarded)")
    add("--scale", type=number_between(1e-6, _MOST_COPIES), default=1.0, metavar="X",
        help="multiple of the log's sessions; below 1, that share of them (default 1)")  # fmt: skip
    add("--sample", type=integer_between(1, 2**53), metavar="N",
        help="number of the log's sessions, drawn by the salt")  # fmt: skip
    add("--json", action="store_true", help="print JSON")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run `loadgen data learn`: write the workload, or nothing, and print it; return 0. Raises UsageError."""
    options = parse_arguments(learn_parser(), argv, intermixed=True)
    log, columns = LogFile(options.log), parse_columns(options.columns)
    name, form = choose_form(options.log_format, log, columns)
    path = expand_path(options.output)
    if not path.name or path.is_dir():
        raise UsageError(f"-o {options.output}: is a directory: give the name of a file")
    if not path.parent.is_dir():
        raise UsageError(f"-o {options.output}: there is no directory {path.parent}")
    if path.exists() and path.samefile(expand_path(options.log)):
        raise UsageError(f"-o {options.output}: is the log itself: give another name")
    tokenizer = None if options.tokenizer is None else load_tokenizer(options.tokenizer, "auto")
    salt = Salt(options.salt)
    meter = PromptMeter(salt, tokenizer, options.input_bytes, options.output_bytes)
    try:
        with (
            choose_display(quiet=False).waiting("reading"),
            CallSpool(path.parent, salt, meter) as spool,
            tempfile.TemporaryFile(dir=path.parent) as body,
        ):
            left_out = _read_calls(log, form.read(log, columns, options.path), spool, meter)
            if not spool.calls:
                whys = ", ".join(f"{count:,} {why}" for why, count in left_out.items())
                none = f"request that was answered ({whys})" if whys else "request of a model in it"
                raise log.refusal(f"has no {none}")
            rows = LearnedSessions(spool, salt, options.scale, options.sample, path.parent)
            packed, file = path.name.endswith(_PACKED), cast(IO[bytes], body)
            if packed:
                file = cast(IO[bytes], gzip.GzipFile("", "wb", _PACKING, file, mtime=0))
            for row in rows.make():
                file.write(encode_row(row))
            if packed:
                file.close()
            if not rows.rows:
                raise UsageError(f"--scale {options.scale:g}: no session of {options.log} is left")
            # Blocks are held of one at a time; nothing is compared if one of them is too large.
            compared, fidelity = _measure_columns(rows.columns), None
            if compared is not None and (own := list_log_calls(spool)) is not None:
                log_figures = _measure_columns(own)
                fidelity = None if log_figures is None else compare_measured(log_figures, compared)
            head = _make_head(name, spool, rows, options, left_out)
            if fidelity is not None:
                head.fidelity = fidelity.json()
            write_output(path, lambda file: _join_parts(file, head, body, packed))
    except OSError as error:
        raise UsageError(f"-o {options.output}: {error.strerror}") from None
    if options.json:
        print_text(format_json(head.json(), indent=2), sys.stdout)
    else:
        print_passages(_list_passages(options.output, head, fidelity))
    return ExitCode.FIGURES


def _read_calls(log: LogFile, found: Rows, spool: CallSpool, meter: PromptMeter) -> Counter[str]:
    """Spool all calls of a log; return the count of other rows by why; raises UsageError for over a year."""
    left_out = Counter[str]()
    for number, row in meter.learn_bytes(_skip_cut_row(found)):
        if isinstance(row, Call):
            spool.add(row)
            if spool.last_ns - spool.first_ns > _MOST_NS or row.end_ns - row.begin_ns > _MOST_NS:
                raise log.refusal("is over a year from another call, or long: was the clock set?", number)
        elif isinstance(row, CallEnd):
            spool.end(row)
        elif isinstance(row, str):
            left_out[row] += 1
    spool.finish()
    return left_out


def _skip_cut_row(rows: Rows) -> Rows:
    """Yield the rows of a log; a last one that is cut, since it is still written, is (0, CUT)."""
    try:
        yield from rows
    except LogFault as fault:
        if not fault.is_cut:
            raise
        yield 0, CUT


def _measure_columns(columns: LearnedColumns) -> tuple[LoadColumns, WorkloadFigures] | None:
    load = columns.make()
    return None if load is None else (replace(load, blocks=None), measure_workload(load))


def _join_parts(file: BinaryIO, head: WorkloadHead, body: IO[bytes], packed: bool) -> None:
    """Write the head and the sessions below it; gzip reads packed parts one after the other as one."""
    row = encode_row(head)
    file.write(gzip.compress(row, mtime=0) if packed else row)
    body.seek(0)
    shutil.copyfileobj(body, file)


def _make_head(
    name: str, spool: CallSpool, rows: LearnedSessions, options: argparse.Namespace, left_out: Counter[str]
) -> WorkloadHead:
    meter = spool.meter
    notes = list(spool.notes)
    if spool.joined:
        notes.append(f"{spool.joined:,} calls are turns since their prompts go on with an earlier one")
    return WorkloadHead(
        block_size=BLOCK,
        source=name,
        sessions=rows.rows,
        calls=rows.calls,
        prompts=describe_counting(meter.prompts, spool.calls),
        answers=describe_counting(meter.answers, spool.calls),
        cancelled=rows.cancelled,
        without_end=rows.without_end,
        left_out=dict(left_out),
        sampled=[] if options.sample is None else [rows.sessions, spool.count_sessions()],
        scale=options.scale,
        notes=notes,
    )


def _list_passages(file: str, head: WorkloadHead, fidelity: Fidelity | None) -> list[Passage]:
    held = f"{format_count(head.calls, 'call')} in {format_count(head.sessions, 'session')}"
    rows: list[tuple[str, str]] = [
        ("workload", f"{file}: {held}"),
        ("log", head.source),
        ("prompts", f"tokens {head.prompts}"),
        ("answers", f"tokens {head.answers}"),
    ]
    if head.cancelled:
        rows.append(("cancelled", f"{head.cancelled:,} by their clients"))
    if head.without_end:
        rows.append(("no end", f"{head.without_end:,} calls, whose answers count to the pause after them"))
    if head.sampled:
        rows.append(("sample", f"{head.sampled[0]:,} of {head.sampled[1]:,} sessions"))
    if head.scale != 1:
        rows.append(("scale", f"{head.scale:g} times the log's sessions"))
    rows += [("left out", f"{format_count(count, 'row')}: {why}") for why, count in head.left_out.items()]
    rows += [("note", note) for note in head.notes]
    compared = [] if fidelity is None else [fidelity.make_passage("log", "workload")]
    return [Passage("", facts=tuple(rows)), *compared]


class LogForm(NamedTuple):
    """One form of a log: what it is, how its first lines are known, and its reader."""

    summary: str
    is_form: Callable[[list[str]], bool]
    read: Callable[[LogFile, Columns, str], Rows]  # the names of --columns, and --path
    named: bool = False  # its columns may be named


FORMS = {
    "otel": LogForm(
        "spans of OpenTelemetry (OTLP's JSON, or flat)", known_logs.is_otel, known_logs.read_otel_calls
    ),
    "litellm": LogForm(
        "LiteLLM's spend logs, or what its JSON loggers write", known_logs.is_litellm, known_logs.read_litellm
    ),
    "vllm": LogForm("vLLM's log with --enable-log-requests", known_logs.is_vllm, known_logs.read_vllm),
    "access": LogForm(
        "access log of nginx or Envoy, as text or JSON", log_rows.is_access, log_rows.read_access, named=True
    ),
    ROWS: LogForm("CSV or JSON rows, with --columns", lambda lines: False, log_rows.read_table, named=True),
}


def choose_form(name: str, log: LogFile, columns: Columns) -> tuple[str, LogForm]:
    """Choose a log's form by its name, by --columns, or by its first lines; raises UsageError for none."""
    found = name or (ROWS if columns else "")
    if not found:
        head = log.read_head()
        found = next((each for each, form in FORMS.items() if form.is_form(head)), "")
    if found not in FORMS:
        raise log.refusal(
            f"is no log that is known: pass --log-format {' | '.join(FORMS)}, or name its columns (--columns)"
        )
    if columns and not FORMS[found].named:
        raise UsageError(f"--columns: the keys of {found} are known: leave it out")
    if found == ROWS and not columns:
        raise UsageError(f"--log-format {ROWS}: name the columns, as --columns time=ts,input=prompt_tokens")
    return found, FORMS[found]
