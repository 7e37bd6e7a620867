"""Sources: the results at given places: runs, campaigns, files of any client, pasted pages."""

from __future__ import annotations

import errno
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from loadgen.base.errors import UsageError
from loadgen.base.files import expand_path
from loadgen.base.parsing import read_figure
from loadgen.base.printing import print_text
from loadgen.base.text import format_count, list_first
from loadgen.records.journal import JOURNAL
from loadgen.report.run_directory import ARRIVALS, RESULT
from loadgen.study import labels
from loadgen.study.bundle import reading
from loadgen.study.bundle.reading import OpenBundle
from loadgen.study.importers import json_fields
from loadgen.study.importers.clients import (
    aiperf_exports,
    guidellm_reports,
    http_clients,
    inference_perf,
    loadgen_runs,
    mlperf_endpoints,
    tabular_clients,
    vllm_files,
)
from loadgen.study.importers.clients.loadgen_runs import StoredLimit, StoredSweep
from loadgen.study.importers.json_fields import ClientFormat
from loadgen.study.importers.pasted import pasted_blocks, pasted_pages, pasted_tables
from loadgen.study.importers.pasted.pasted_tables import TableRows
from loadgen.study.limit_record import LIMIT
from loadgen.study.quality.arm_qualities import find_run_quality
from loadgen.study.run_summary import OURS, FailedCell, Reported
from loadgen.study.sweep_record import SWEEP

_MOST_ERRORS = 20
_MOST_FILES = 200_000  # checked in one directory
_LARGE_BYTES = 64 << 20  # in a directory, what is larger is weights, not results
_HEAD_BYTES = 8192
# Results begin like this; a log may begin as [INFO] or [2026-11-27.
_JSON = re.compile(r"\s*[\[{]\s*(?:[\"\[\]{}]|$)")
_NAMED = 3
_FIRST_WAIT_S, _MOST_WAIT_S = 2.0, 30.0  # between lines on how far a long reading is
_LONGEST_DETAIL = 200
# An untrusted file can make a reader raise these: they cost that file, not the comparison.
_DAMAGED = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError, OSError)
_TITLE = "Serving Benchmark Result"
_BYPRODUCT = re.compile(
    r".*-repeats\.json|server\.log|(?:ladder|depth)\.(?:html|rst|md|csv|json)"
    r"|(?:campaign|sweep|limit|ladder)\.(?:json|lock)"
)
_BENCHY, _DEPTH = "llama-benchy.json", "depth.json"  # what `loadgen ladder --concurrency` writes
_PAGE = b'<meta name="generator" content="loadgen'


# Those whose files hold another's keys come first.
CLIENTS: tuple[ClientFormat, ...] = (
    loadgen_runs.LOADGEN, guidellm_reports.GUIDELLM, aiperf_exports.GENAI_PERF, aiperf_exports.AIPERF,
    vllm_files.SGLANG, vllm_files.VLLM, tabular_clients.EVALSCOPE, tabular_clients.LLAMA_BENCH,
    tabular_clients.LLAMA_BENCHY, tabular_clients.INFERENCEX, inference_perf.INFERENCE_PERF,
    inference_perf.LLM_D, mlperf_endpoints.MLPERF, http_clients.K6, http_clients.OHA,
)  # fmt: skip
TEXTS = (  # that are neither JSON nor anyone's table: each reads its own client's
    tabular_clients.read_report, guidellm_reports.read_report, http_clients.read_report,
    tabular_clients.read_benchy_sheet, inference_perf.read_yaml,
)  # fmt: skip
_MARKS = (
    *(mark for client in CLIENTS for mark in client.marks),
    *pasted_tables.MARKS,
    *guidellm_reports.PRINTED_MARKS,
    *http_clients.PRINTED_MARKS,
    tabular_clients.MARK.encode(),
    *(_TITLE.encode(encoding) for encoding in ("utf-8", "utf-16-le", "utf-16-be")),
)


class Sources(msgspec.Struct, frozen=True):
    """The results that were read, and a line on each that could not be, or is in two places."""

    reported: tuple[Reported, ...]
    errors: tuple[str, ...] = ()
    failures: tuple[FailedCell, ...] = ()
    sweeps: tuple[StoredSweep, ...] = ()
    limits: tuple[StoredLimit, ...] = ()

    @property
    def outside_searches(self) -> Sources:
        """The sources without the runs of searches for a limit, whose loads the search chose."""
        inside = {id(run) for limit in self.limits for run in limit.runs if run.place == limit.place}
        return replace(self, reported=tuple(run for run in self.reported if id(run) not in inside))


def read_sources(places: Sequence[str], shows_progress: bool = True) -> Sources:
    """Read everything at these places: run directories, directories of them, campaigns, files of any client.

    What cannot be read is a line among the errors, twenty at most. Where it takes more than two seconds, the
    standard error has a line now and then on how far it is, if `shows_progress`. Raises UsageError if a
    place does not exist, before anything is read, and if nothing could be read.
    """
    paths = [expand_path(named) for named in places]
    if missing := [str(path) for path in paths if _is_missing(path)]:
        raise UsageError(f"{list_first(missing, _NAMED)}: No such file or directory")
    named: dict[str, Path] = {}
    again = [path for path in paths if named.setdefault(os.path.realpath(path), path) is not path]
    results = _Reading(named, shows_progress=shows_progress, begun_s=time.monotonic())
    for path in named.values():
        results.read_place(path)
    if not (results.reported or results.failures or results.sweeps or results.limits):
        first = results.errors[:_NAMED] or ["no place is given: pass runs, campaigns or files of results"]
        more = len(results.errors) - len(first)
        raise UsageError("; ".join(first) + (f"; and {more} more" if more > 0 else ""))
    left = len(results.errors) - _MOST_ERRORS
    errors = [f"{path} was named before: it is read once" for path in again]
    errors += [
        f"given twice, used once: {list_first([*map(str, both)], _NAMED)}, under {used} and not under {other}"
        for (used, other), both in results.shared.items()
    ]
    errors += results.errors[:_MOST_ERRORS]
    errors += [f"and {left} more could not be read"] if left > 0 else []
    searches = []
    for limit in results.limits:
        own = set(map(os.path.realpath, limit.run_directories))
        runs = tuple(run for run in results.reported if os.path.realpath(run.source) in own)
        searches.append(replace(limit, runs=runs))
    sources = Sources(
        tuple(results.reported),
        tuple(errors),
        tuple(results.failures),
        tuple(results.sweeps),
        tuple(searches),
    )
    if not results.bundles:
        return sources
    named_runs: dict[int, Reported] = {}
    for run in sources.reported:
        inside = (bundle for bundle in results.bundles if Path(run.source).is_relative_to(bundle.directory))
        bundle = next(inside, None)
        named_runs[id(run)] = run if bundle is None else replace(run, source=bundle.name_place(run.source))
    limits = (replace(limit, runs=tuple(named_runs[id(run)] for run in limit.runs)) for limit in searches)
    return replace(sources, reported=tuple(named_runs.values()), limits=tuple(limits))


@dataclass
class _Reading:
    """The results read so far: each once, of the place that names it itself, else of the first."""

    named: dict[str, Path]
    reported: list[Reported] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    failures: list[FailedCell] = field(default_factory=list)
    sweeps: list[StoredSweep] = field(default_factory=list)
    limits: list[StoredLimit] = field(default_factory=list)
    met: dict[str, Path] = field(default_factory=dict)  # the place that each thing is of, by real paths
    # Results in two places, by the one place and the other.
    shared: dict[tuple[Path, Path], list[Path]] = field(default_factory=dict)
    current: Path = Path()
    shows_progress: bool = False
    begun_s: float = 0.0
    wait_s: float = _FIRST_WAIT_S  # until the next line on how far it is
    checked: int = 0  # files without a run
    bundles: list[OpenBundle] = field(default_factory=list)

    def read_place(self, path: Path) -> None:
        """Read a place that was named; its runs and searches are recorded as of that place."""
        self.current = path
        runs, limits = len(self.reported), len(self.limits)
        if path.is_dir():
            before = self._count
            looked = self._read_directory(path)
            if before == self._count:
                self.errors.append(f"{path} has no known results in {looked} files")
        elif reading.is_bundle_file(path):
            self._attempt(path, lambda: self._read_bundle(path))
        else:
            self._attempt(path, lambda: self._read_file(path, json_fields.read_file(path)))
        self.reported[runs:] = [replace(run, place=str(path)) for run in self.reported[runs:]]
        self.limits[limits:] = [replace(limit, place=str(path)) for limit in self.limits[limits:]]

    @property
    def _count(self) -> int:
        """How many things were read so far, errors and what is of another place too."""
        results = len(self.reported) + len(self.failures) + len(self.sweeps) + len(self.limits)
        return results + len(self.errors) + sum(map(len, self.shared.values()))

    def _read_directory(self, path: Path) -> int:
        """Read all results in a directory and below; return how many files outside runs were looked at."""
        count, passed = 0, list[Path]()
        for where, inside, names in os.walk(path, followlinks=True):
            here = Path(where)
            if not self._claim(here):  # a link that leads back
                inside.clear()
                continue
            inside[:] = sorted(name for name in inside if not name.startswith("."))
            if is_campaign(inside, names):
                for cell in loadgen_runs.read_failures(here):
                    if isinstance(cell, str):
                        self.errors.append(cell)
                    else:
                        self.failures.append(cell)
                inside[:] = [name for name in inside if name == loadgen_runs.CELLS]
                continue
            if (record := self._read_search(here, names)) is not None:
                inside.clear()
                for run in record.run_directories:
                    if loadgen_runs.is_run(run) and self._claim(run):
                        self._read_run(run)
                continue
            if {ARRIVALS, RESULT, JOURNAL} & set(names) and loadgen_runs.is_run(here):
                inside.clear()
                self._read_run(here)
                continue
            for name in sorted(names):
                count += 1
                other = here / name
                raw = None if _is_byproduct(other) else _read_promising(other)
                if raw is not None and not _repeats_others(other, raw):
                    self._attempt(other, partial(self._read_file, other, raw))
                elif raw is None and not _is_byproduct(other):
                    passed.append(other)
                self.checked += 1
                self._tell_progress()
            if count > _MOST_FILES:
                stopped = f"{path}: stopped after {count} files: pass the directories in it separately"
                self.errors.append(stopped)
                break
        if passed:
            named = list_first([os.path.relpath(other, path) for other in passed], _NAMED)
            self.errors.append(f"{path}: {len(passed)} of {count} files have no results: {named}")
        return count

    def _tell_progress(self) -> None:
        """Write how far it is to the standard error, if it is time for the next line."""
        if self.shows_progress and time.monotonic() - self.begun_s >= self.wait_s:
            self.wait_s = min(2 * self.wait_s, self.wait_s + _MOST_WAIT_S)
            read = (
                f"{format_count(len(self.reported), 'result')} and {format_count(self.checked, 'other file')}"
            )
            print_text(f"loadgen: reading {self.current}: {read} so far", sys.stderr)

    def _read_bundle(self, path: Path) -> None:
        """Read the runs of a bundle, and note a search or quality in it, which only `verify` checks."""
        self.bundles.append(reading.open_bundle(path))
        self._read_directory(self.bundles[-1].directory)
        stated = [name for name in (LIMIT, "quality") if self.bundles[-1].has(name)]
        if stated:
            self.errors.append(
                f"{path}: {' and '.join(stated)} are as it states them: `loadgen verify` says what holds"
            )

    def _read_search(self, directory: Path, names: Sequence[str]) -> StoredSweep | StoredLimit | None:
        """Add the record of the sweep or search in a directory, and return it; None if there is none."""
        try:
            if SWEEP in names:
                self.sweeps.append(loadgen_runs.read_sweep(directory))
                return self.sweeps[-1]
            if LIMIT in names:
                self.limits.append(loadgen_runs.read_limit(directory))
                return self.limits[-1]
        except UsageError as error:
            self.errors.append(str(error))
        return None

    def _read_run(self, directory: Path) -> None:
        """Read the run of a directory, with its ladder's speed and its quality; of a bundle all again."""

        def read() -> None:
            bundled = any(directory.is_relative_to(each.directory) for each in self.bundles)
            run = loadgen_runs.read_run(directory, again=bundled)
            run = loadgen_runs.add_ladder_speed(run, directory, again=bundled)
            self.reported.append(replace(run, quality=find_run_quality(directory, run.cell)))

        self._attempt(directory, read)
        self._tell_progress()

    def _read_file(self, path: Path, raw: bytes) -> None:
        """Add what a file holds: JSON, a client's sheet, blocks or tables; raises UsageError if none."""
        if not self._claim(path):
            return
        content = json_fields.decode_text(raw, path)
        if _JSON.match(content) is not None and self._read_documents(content, path):
            return
        if tabular_clients.is_llama_sheet(content):
            for line, row in tabular_clients.read_llama_sheet(content, path):
                where = f"{path}:{line}"
                self._attempt(
                    where, partial(self._add, path, _read_labelled, tabular_clients.LLAMA_BENCH, row, where)
                )
        elif aiperf_exports.is_sheet(content):
            self._add(path, aiperf_exports.read_sheet, content, path)
        elif pasted_tables.is_table(content):
            self._add_rows(path, pasted_tables.read_csv_table(content, path))
        elif pasted_blocks.HEADER.search(content) is not None:
            self._add(path, pasted_pages.read_page, content, path)
        elif runs := next(filter(None, (read(content, path) for read in TEXTS)), []):
            self._add(path, lambda: runs)
        elif not self._add_rows(path, pasted_tables.read_tables(content, path)):
            raise UsageError(
                f"{path} has no known results: give a result file of a client (docs/others.md), "
                "a table with its figures in its titles (with their units), a row a run, or pasted blocks"
            )

    def _add_rows(self, path: Path, rows: TableRows) -> bool:
        """Add the runs of a file's tables and lines on rows left out; return whether there were any."""
        runs, left = rows
        self._add(path, lambda: runs)
        self.errors += left
        return bool(runs or left)

    def _read_documents(self, content: str, path: Path) -> bool:
        """Add the runs of a file's JSON documents; return whether the file needs no other reader.

        It needs none if a client's document is in it, or if its JSON is broken and it has no pasted block.
        """
        parts = list(json_fields.read_documents(content))
        if parts and not any(part.error for part in parts):  # perhaps the rows of one table
            joined = tabular_clients.join_percentiles([part.value for part in parts])
            parts = [replace(parts[0], value=joined[0])] if len(joined) < len(parts) else parts
        clients = (next((one for one in CLIENTS if one.is_result(part.value)), None) for part in parts)
        readable = [(part, client) for part, client in zip(parts, clients, strict=True) if client is not None]
        json_fields.check_results(path, len(readable))
        for document, client in readable:
            source = f"{path}:{document.line}" if len(readable) > 1 else str(path)
            self._attempt(source, partial(self._add, path, _read_labelled, client, document.value, source))
        broken = [part for part in parts if part.error]
        listed = [*broken[:_NAMED], *(part for part in broken[_NAMED:] if part.last)]
        if readable or pasted_blocks.HEADER.search(content) is None:
            self.errors += [f"{path}:{part.line}: {part.error}" for part in listed]
        return bool(readable) or (bool(broken) and pasted_blocks.HEADER.search(content) is None)

    def _add(self, path: Path, read: Callable[..., Iterable[Reported]], *given: object) -> None:
        """Add the runs that a reader yields, with the mean lengths that follow from totals of tokens."""
        for run in read(*given):
            completed, load = read_figure(run.figures.get("completed")), run.load
            for way in ("input", "output"):
                total = read_figure(run.figures.get(f"total_{way}_tokens"))
                if completed and total is not None:
                    load = replace(load, **{f"{way}_len": total / completed})
            self.reported.append(replace(run, load=load, file=str(path)))

    def _attempt(self, source: Path | str, act: Callable[[], None]) -> None:
        """Call `act`; a UsageError of it, or one that damaged data cause, is added to the errors."""
        try:
            act()
        except UsageError as error:
            self.errors.append(str(error))
        except _DAMAGED as error:
            reason = " ".join(str(error).split())[:_LONGEST_DETAIL]
            self.errors.append(f"{source} is damaged: {reason or type(error).__name__}")

    def _claim(self, path: Path) -> bool:
        """Note a path as met in the current place; return whether it is new, and not of another place."""
        real = os.path.realpath(path)
        owner = self.named.get(real) or self.met.get(real, self.current)
        if owner != self.current:
            self.shared.setdefault((owner, self.current), []).append(path)
            return False
        new = real not in self.met
        self.met[real] = owner
        return new


def is_campaign(inside: Iterable[str], names: Collection[str]) -> bool:
    """Whether a directory with these directories and files is a campaign, of which only cells are read."""
    return loadgen_runs.CAMPAIGN in names and bool({loadgen_runs.CELLS, loadgen_runs.FAILED} & set(inside))


def may_hold_results(path: Path) -> bool:
    """Whether a file that is met in a directory would be read as results."""
    raw = None if _is_byproduct(path) else _read_promising(path)
    return raw is not None and not _repeats_others(path, raw)


def _is_byproduct(path: Path) -> bool:
    """Whether a file was written next to runs of ours, from which all in it follows."""
    is_report = path.name == _BENCHY and path.with_name(_DEPTH).is_file()
    return is_report or _BYPRODUCT.fullmatch(path.name) is not None


def _repeats_others(path: Path, raw: bytes) -> bool:
    """Whether a file has what another one next to it has, or is a table or page of ours."""
    text = raw.decode("utf-8", "replace")
    # The JSON next to a sheet has the same figures with more digits, the model and the load.
    in_json = aiperf_exports.is_sheet(text[:_HEAD_BYTES]) and path.with_suffix(".json").is_file()
    is_ours = _PAGE in raw or (pasted_tables.may_be_table(raw) and pasted_tables.is_own_table(text))
    return in_json or is_ours or tabular_clients.is_part(path) or inference_perf.repeats_stages(path)


def _is_missing(path: Path) -> bool:
    """Whether nothing is at a path, or only a link to nothing; what may not be read is there."""
    try:
        path.stat()
    except OSError as error:
        return error.errno in (errno.ENOENT, errno.ENOTDIR)
    return False


def _read_labelled(client: ClientFormat, document: Mapping[str, Any], source: str) -> Iterator[Reported]:
    for run in client.read_runs(document, source):
        own = run.told_by == OURS
        yield run if own else replace(run, unread={**labels.read_labels(document, run.figures), **run.unread})


def _read_promising(path: Path) -> bytes | None:
    """Return the bytes of a file that may hold results; None if it cannot be read or has no such mark."""
    try:
        if not path.is_file() or not 0 < path.stat().st_size <= _LARGE_BYTES:
            return None
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
            if b"\0" in head and head[:1] not in (b"\xff", b"\xfe"):
                return None
            raw = head + file.read(_LARGE_BYTES)
    except OSError:
        return None
    return raw if pasted_tables.may_be_table(head) or any(mark in raw for mark in _MARKS) else None
