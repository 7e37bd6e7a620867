"""`loadgen data learn`: a log of a service becomes a workload without its texts, names and ids."""

from __future__ import annotations

import argparse
import gzip
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, BinaryIO, cast

import numpy as np
from msgspec.structs import replace

from loadgen.base import parsing
from loadgen.base.arrays import Int64
from loadgen.base.clock import SECOND_NS, US_NS
from loadgen.base.errors import ExitCode, UsageError
from loadgen.base.files import expand_path, write_output
from loadgen.base.parsing import Parser, integer_between, number_between, parse_arguments
from loadgen.base.passages import Passage, print_passages
from loadgen.base.printing import print_text
from loadgen.base.text import format_count, format_json
from loadgen.features.traces.learn.call_spool import (
    BLOCK,
    PARTS,
    CallSpool,
    KeptCall,
    PromptMeter,
    Salt,
    describe_counting,
    open_temporary,
)
from loadgen.features.traces.learn.calls import CUT, UNKNOWN, Call, CallEnd, LogFault, LogFile, Rows
from loadgen.features.traces.learn.log_forms import COLUMNS, FORMS, choose_form, parse_columns
from loadgen.features.traces.trace_blocks import make_load_columns, scope_hashes
from loadgen.features.traces.trace_rows import TraceColumns, sort_by_time
from loadgen.features.traces.workload import (
    WorkloadCall,
    WorkloadHead,
    WorkloadSession,
    count_kept,
    encode_row,
)
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
_PACKING = 4  # 6 takes three times as long for 2 % less of hashes, 10 % of a log without prompts
_MOST_NS = round(parsing.YEAR_S * SECOND_NS)  # of a log, and of a call


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
        help="bytes per token of responses of known size alone (default 270, as in a stream)")  # fmt: skip
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
                none = f"request that got a response ({whys})" if whys else "request of a model in it"
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
        ("outputs", f"tokens {head.answers}"),
    ]
    if head.cancelled:
        rows.append(("cancelled", f"{head.cancelled:,} by their clients"))
    if head.without_end:
        rows.append(("no end", f"{head.without_end:,} calls, whose responses count to the pause after them"))
    if head.sampled:
        rows.append(("sample", f"{head.sampled[0]:,} of {head.sampled[1]:,} sessions"))
    if head.scale != 1:
        rows.append(("scale", f"{head.scale:g} times the log's sessions"))
    rows += [("left out", f"{format_count(count, 'row')}: {why}") for why, count in head.left_out.items()]
    rows += [("note", note) for note in head.notes]
    compared = [] if fidelity is None else [fidelity.make_passage("log", "workload")]
    return [Passage("", facts=tuple(rows)), *compared]


_MOST_MOVED_NS, _LEAST_MOVED = 60 * SECOND_NS, 0.25  # by which a copy is later, and the least share of it
_WORD = 2.0**64
_MASK = np.int64(2**63 - 1)
_PART_BITS = 57  # of a hash of 63 bits, below those that choose its part
MOST_CALLS, MOST_BLOCKS = 1 << 20, 1 << 23  # that are compared, in 1 GiB at most


class LearnedSessions:
    """Makes the rows of a workload from a spool, in the order of their sessions' hashes.

    A rate of X is made by superposition, whole sessions at a time. Below 1 each session is kept by the chance
    X, as its hash decides. Above 1 there are copies of the log, the last one thinned to the fraction; each is
    later by one drawn time, 15 s to a minute, and what would begin after the log's last session begins at its
    start. So bursts stay as they are, and over longer times the rate is X times the log's; in windows of
    seconds the index of dispersion stays that of the log, since counts that are independent add up in mean
    and variance alike. What several sessions of the log share, copies share too. What is a session's own is
    another in each copy.
    """

    def __init__(self, spool: CallSpool, salt: Salt, scale: float, most: int | None, directory: Path) -> None:
        self._spool, self._salt, self._scale, self._most = spool, salt, scale, most
        self._shared = find_shared_blocks(spool, directory) if scale > 1 else np.zeros(0, np.int64)
        self._span_ns = spool.find_last_begin() - spool.first_ns + 1 if scale > 1 else 0
        self._samplings, self._paths = [dict(pairs) for pairs in spool.samplings], list(spool.paths)
        self.columns = LearnedColumns("workload")
        self.sessions = self.rows = self.calls = self.cancelled = self.without_end = 0

    def make(self) -> Iterator[WorkloadSession]:
        """Yield the row of each kept session and of its copies, up to `most` sessions; counts them."""
        whole, part = divmod(self._scale, 1)
        for found in self._spool.list_sessions():
            if self._most is not None and self.sessions == self._most:
                return
            copies = range(int(whole) + (found[0].session < part * _WORD))  # 0 is the log's own
            self.sessions += bool(copies)
            blocks = [self._spool.read_blocks(call) for call in found] if copies else []
            for copy in copies:
                yield self._make_row(found, blocks, copy)

    def _make_row(self, found: list[KeptCall], blocks: list[Int64], copy: int) -> WorkloadSession:
        """Make the row of a session, or of its copy (0: the log's own); count its calls, note its columns."""
        begin_ns = found[0].begin_ns
        moved_ns = begin_ns - self._spool.first_ns
        if copy:  # moved by the drawn time of its copy
            drawn = _LEAST_MOVED + (1 - _LEAST_MOVED) * self._salt.hash_name("copy", str(copy)) / _WORD
            moved_ns = (moved_ns + int(drawn * min(_MOST_MOVED_NS, self._span_ns))) % self._span_ns
        row = WorkloadSession(_floor_s(moved_ns), [])
        agents: dict[tuple[str, ...], int] = {(): 0}
        before = np.zeros(0, np.int64)
        for call, own in zip(found, blocks, strict=True):
            ids = own if copy == 0 else self._change_own(own, copy)
            kept = count_kept(before, ids)
            at_s, end_s = (
                _floor_s(at_ns - begin_ns) for at_ns in (call.begin_ns, max(call.begin_ns, call.end_ns))
            )
            path = self._paths[call.agents]
            for depth in range(1, len(path) + 1):  # parents are numbered before their sub-agents
                if path[:depth] not in agents:
                    row.parents.append(agents[path[: depth - 1]])
                    agents[path[:depth]] = len(row.parents)
            row.calls.append(
                WorkloadCall(
                    at_s,
                    call.input_len,
                    call.output_len,
                    None if call.end_ns == UNKNOWN else round(end_s - at_s, 6),
                    agents[path],
                    kept,
                    ids[kept:].tolist(),
                    bool(call.cancelled),
                    None if call.sampling == UNKNOWN else self._samplings[call.sampling],
                )
            )
            at_ns = round(row.t * SECOND_NS) + round(at_s * SECOND_NS)
            self.columns.add(self.rows, at_ns, (call.input_len, call.output_len), ids)
            self.cancelled += call.cancelled
            self.without_end += call.end_ns == UNKNOWN
            before = ids
        self.rows += 1
        self.calls += len(row.calls)
        return row

    def _change_own(self, ids: Int64, copy: int) -> Int64:
        """Return a prompt's hashes in a copy: other ones for blocks that only one session of the log has."""
        at = np.searchsorted(self._shared, ids)
        shared = np.zeros(len(ids), np.bool_)
        inside = at < len(self._shared)
        shared[inside] = self._shared[at[inside]] == ids[inside]
        return np.where(shared, ids, scope_hashes(ids, copy) & _MASK)


def find_shared_blocks(spool: CallSpool, directory: Path) -> Int64:
    """Find the hashes that several sessions of a spool have, sorted; they go over the disk by parts."""
    with ExitStack() as stack:
        files = open_temporary(stack, directory, PARTS)
        for session in spool.list_sessions():
            hashes = np.unique(np.concatenate([spool.read_blocks(call) for call in session]))
            bounds = np.searchsorted(hashes >> _PART_BITS, np.arange(PARTS + 1))
            for part in np.flatnonzero(np.diff(bounds)).tolist():
                files[part].write(hashes[bounds[part] : bounds[part + 1]].tobytes())
        repeated = []
        for file in files:
            file.seek(0)
            hashes = np.sort(np.frombuffer(file.read(), np.int64))
            repeated.append(np.unique(hashes[1:][hashes[1:] == hashes[:-1]]))
        return np.concatenate(repeated)


def _floor_s(span_ns: int) -> float:
    """Round nanoseconds down to microseconds, in seconds: what ended before another began still did."""
    return span_ns // US_NS / 1e6


class LearnedColumns:
    """The columns of calls, filled session by session; of too many nothing is kept."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._columns = TraceColumns()
        self.full = False

    def add(self, session: int, at_ns: int, lens: tuple[int, int], blocks: Int64) -> None:
        """Add one call of a session: its time, its lengths and its blocks; nothing once `full`."""
        if not self.full:
            self._columns.add(at_ns, lens, len(self._columns) + 1, session, blocks.tolist())
            self.full = len(self._columns) > MOST_CALLS or self._columns.blocks > MOST_BLOCKS

    def make(self) -> LoadColumns | None:
        """Make the columns sorted by time and forget the calls; None of over 2²⁰ calls or 2²³ blocks."""
        columns, self._columns = self._columns, TraceColumns()
        if self.full:
            return None
        return make_load_columns(sort_by_time(columns.make(self._name, "", BLOCK, sessions=columns.sessions)))


def list_log_calls(spool: CallSpool) -> LearnedColumns | None:
    """Collect the columns of a log's calls; None of more than 2²⁰ calls or 2²³ blocks."""
    if spool.calls > MOST_CALLS or spool.blocks > MOST_BLOCKS:
        return None
    columns = LearnedColumns("log")
    for number, session in enumerate(spool.list_sessions()):
        for call in session:
            lens = call.input_len, call.output_len
            columns.add(number, call.begin_ns, lens, spool.read_blocks(call))
    return columns
