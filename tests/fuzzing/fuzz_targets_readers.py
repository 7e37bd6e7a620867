"""Functions of bytes for `python -m fuzz` and the suite: readers of files and servers; each must return."""

from __future__ import annotations

import contextlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fuzzing.fuzz_files import written
from fuzzing.fuzz_odd import replaced, shortened, spots
from loadgen.base import secrecy
from loadgen.base.errors import UsageError
from loadgen.base.passages import render_passages
from loadgen.base.secrecy import Secrets
from loadgen.base.text import clean_text, format_csv, format_json, make_file_name
from loadgen.plan import profile as profiles
from loadgen.server import prometheus
from loadgen.study import compare_command
from loadgen.study.audit import audit_command
from loadgen.study.audit import findings as audits
from loadgen.study.compare import comparison, comparison_report
from loadgen.study.compare.model import ComparisonOptions
from loadgen.study.importers import json_fields, result_sources
from loadgen.study.importers.pasted import pasted_pages, pasted_tables
from loadgen.study.run_summary import Reported
from loadgen.study.series.campaign import campaign_file as campaigns
from loadgen.wire import http1
from loadgen.wire import sse as events

RESULTS = Path(__file__).parents[1] / "data/results"
_NOWHERE = Path("x.md")
_SECRET = 6  # characters from which a value is a secret


def page(data: bytes) -> None:
    """Pasted blocks, and tables."""
    pasted_pages.read_page(data.decode("utf-8", "replace"), _NOWHERE)
    pasted_tables.read_tables(data.decode("utf-8", "replace"), _NOWHERE)


def results(data: bytes) -> None:
    """A file of anybody's results; damage must be named by its reader, not by the last resort."""
    with contextlib.suppress(UsageError):
        result_sources.read_sources([str(written(data, "results"))])


def printed(data: bytes) -> None:
    """What a client printed, or wrote as a sheet of its own."""
    said = data.decode("utf-8", "replace")
    for read in result_sources.TEXTS:
        with contextlib.suppress(UsageError):
            json.dumps([one.figures for one in read(said, _NOWHERE)])


def profile(data: bytes) -> None:
    """A profile."""
    with contextlib.suppress(UsageError):
        profiles.load(str(written(data, "profile.toml")), {})


def campaign(data: bytes) -> None:
    """A campaign's file."""
    with contextlib.suppress(UsageError):
        campaigns.load_campaign(written(data, "campaign.toml"))


def client_documents(data: bytes) -> None:
    """Documents of any client, given to their readers themselves: these name what is wrong with them."""
    for document in json_fields.read_documents(data.decode("utf-8", "replace")):
        _read(document.value)


def _read(document: dict[str, Any]) -> None:
    for client in result_sources.CLIENTS:
        if client.is_result(document):
            with contextlib.suppress(UsageError):
                for one in client.read_runs(document, "x.json"):
                    json.dumps(one.figures)  # an infinity is kept: an audit names it
            break


@cache
def _documents() -> list[tuple[Any, list[tuple[Any, ...]]]]:
    """What each client wrote, its lists short, and every spot in it."""
    files = sorted((*RESULTS.glob("*.json*"), RESULTS.parent / "run_directories/smoke/result.json"))
    known = [shortened(one.value) for path in files for one in json_fields.read_documents(path.read_text())]
    return [(one, spots(one)) for one in known]


def odd_documents(data: bytes) -> None:
    """What clients wrote, with odd values in it: the first byte says which."""
    if data:
        known = _documents()
        _read(replaced(*known[data[0] % len(known)], data[1:]))


def sheet(data: bytes) -> None:
    """A table as comma-separated values."""
    text = data.decode("utf-8", "replace")
    if pasted_tables.is_table(text):
        with contextlib.suppress(UsageError):
            pasted_tables.read_csv_table(text, written(text.encode(), "sheet.csv"))


def _sources(data: bytes, name: str) -> tuple[Reported, ...]:
    """What is read of a file."""
    try:
        return result_sources.read_sources([str(written(data, name))]).reported
    except UsageError:
        return ()


def compare(data: bytes) -> None:
    """A comparison of what a file holds, in every form."""
    reported = _sources(data, "compare")
    if reported:
        found = comparison.compare_runs(list(reported), ComparisonOptions(), ())
        passages = compare_command.list_passages(found, ())
        written = (render_passages(passages, form) for form in (False, True))
        for said in (*written, comparison_report.render_csv(found)):
            clean_text(said).encode()


def audit(data: bytes) -> None:
    """An audit of what a file holds, in every form."""
    reported = _sources(data, "audit")
    if reported:
        findings = audits.audit_runs(reported, None, None, "")
        clean_text(render_passages(audit_command.list_audit_passages(findings, True))).encode()
        format_json(audit_command.Audited(findings, None, [], []).json(), indent=1)


def text(data: bytes) -> None:
    """What may be printed, written and named."""
    said = data.decode("utf-8", "surrogateescape")
    assert clean_text(clean_text(said)) == clean_text(said)
    clean_text(said).encode()
    format_json({said: said}).encode()
    assert (Path("d") / make_file_name(said)).parent == Path("d")
    format_csv([[said, said]]).encode()


def hide(data: bytes) -> None:
    """Secrets in a line, and in what is known to hold some: none of them is left."""
    line = data.decode("utf-8", "replace")
    secrecy.hide_secrets(line)
    known, _, said = line.partition("\n")
    secrets = Secrets.collect({"authorization": known}, ({"api_key": known},), known)
    hidden = secrets.hide(f"{said} {known} {said}")
    assert len(known.strip()) < _SECRET or known.strip() not in hidden
    secrets.mask({said: [known, {known: said}]})


def exposition(data: bytes) -> None:
    """/metrics."""
    prometheus.parse_metrics(prometheus.select_lines(200, data))


class _Reads(list[bytes]):
    """Reads as a framing is given them."""

    def list_since(self, count: int) -> list[bytes]:
        return self[count:]


def http(data: bytes) -> None:
    """Heads and framings, as a whole and in reads of a length that the first byte says."""
    size, raw = data[:1], data[1:]
    head = http1.Heads().feed(raw)
    length = max(size[0], 1) if size else 1
    reads, heads = _Reads(), http1.Heads()
    for at in range(0, min(len(raw), 64 * length), length):
        reads.append(raw[at : at + length])
        found = heads.read(reads)
        if found is not None:
            break
    if isinstance(head, http1.ResponseHead):
        framing, whole = head.framing, _Reads([raw])
        if framing.begins_well(head.rest) and not framing.is_done(whole):
            framing.check_end(whole)
    http1.unframe_response(raw, np.array([len(raw) // 2, len(raw)], np.int64))


def sse(data: bytes) -> None:
    """A body's events, whole or cut: the quick way finds what the exact one does."""
    for whole in (True, False):
        quick = events.read_events(data, whole)
        datas, ends, done, fault = events.split_events(data, whole)
        assert (quick.ends.tolist(), quick.done, quick.fault) == (ends, done, fault)
        lines = bytes(quick.lines).split(b"\n")
        assert [one.strip() for one in lines if one.strip()] == [
            events.join_lines(one).strip() for one in datas
        ]
