"""HTTP clients: the summaries of k6 and oha, as JSON and as they print them.

They know responses, not tokens: how many, how fast, and how long each took as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from loadgen.base.parsing import read_figure
from loadgen.base.untrusted import read_mapping
from loadgen.report.load_identity import Load
from loadgen.study.importers import json_fields
from loadgen.study.importers.json_fields import ClientFormat, find_value, read_count
from loadgen.study.importers.pasted import page_reader
from loadgen.study.run_summary import Reported

_K6, _OHA = "k6", "oha"
_DURATION, _EXPECTED = "http_req_duration", "http_req_duration{expected_response:true}"
_WHOLE = {
    _K6: "its http_req_duration is E2EL here, to the response's end; its http_req_waiting ends at the head: "
    "no TTFT",
    _OHA: "its response time is E2EL here, connecting included, to the response's end; its first byte is no "
    "token: no TTFT",
}
_MIXED = "its latencies are of failed requests too: left out"
_DEADLINE = "aborted due to deadline"  # neither answered nor failed: the time was over
PRINTED_MARKS = (b"http_req_duration", b"Success rate:")  # which hey does not print, but for that as oha


def _make_run(client: str, figures: dict[str, Any], load: Load, source: str, remarks: list[str]) -> Reported:
    if figures.get("completed") is not None and figures.get("duration"):
        figures["request_throughput"] = figures["completed"] / figures["duration"]
    return json_fields.make_run(client, "", figures, load, source, (f"{client}: {_WHOLE[client]}", *remarks))


def _read_k6(document: Mapping[str, Any], source: str) -> Iterator[Reported]:
    """Yield a summary's run; latencies are of expected responses, left out where failed ones are mixed in."""
    metrics = read_mapping(document.get("metrics"))
    values = {
        name: read_mapping(find_value(each, "values")) or read_mapping(each) for name, each in metrics.items()
    }
    sent, rate = (find_value(values.get("http_reqs"), key) for key in ("count", "rate"))
    requests, failed = read_count(sent), read_count(find_value(values.get("http_req_failed"), "passes"))
    run_ms = read_figure(find_value(document, "state.testRunDurationMs"))
    per_s = read_figure(rate)
    answered = None if requests is None else max(requests - (failed or 0), 0)
    figures: dict[str, Any] = {
        "completed": answered,
        "failed": failed,
        "duration": run_ms / 1e3 if run_ms else requests / per_s if requests and per_s else None,
    }
    latencies = values.get(_EXPECTED) or ({} if failed else values[_DURATION])
    figures |= json_fields.read_statistics("e2el_ms", latencies)
    rated = "dropped_iterations" in values
    users = None if rated else read_count(find_value(values.get("vus_max"), "max"))
    load = Load(requests=requests, max_concurrency=users)
    yield _make_run(_K6, figures, load, source, [] if latencies else [f"{_K6}: {_MIXED}"])


K6 = ClientFormat(
    _K6,
    (b'"http_req_duration"',),
    lambda document: {*read_mapping(document.get("metrics"))} >= {"http_reqs", _DURATION},
    _read_k6,
)


def _read_oha(document: Mapping[str, Any], source: str) -> Iterator[Reported]:
    """Yield the one run of a summary; raises UsageError without figures.

    Answers of a status from 200 to 299 succeeded. With others among them, the latencies are those of the
    successful ones, which --stats-success-breakdown adds.
    """
    summary = read_mapping(document.get("summary"))
    by_status = {
        status: read_count(count) or 0
        for status, count in read_mapping(document.get("statusCodeDistribution")).items()
    }
    errors = read_mapping(document.get("errorDistribution"))
    answered = sum(count for status, count in by_status.items() if status.startswith("2"))
    failed = sum(by_status.values()) - answered
    lost = sum(read_count(count) or 0 for error, count in errors.items() if error != _DEADLINE)
    figures: dict[str, Any] = {
        "completed": answered, "failed": failed + lost, "duration": read_figure(summary.get("total")),
    }  # fmt: skip
    latencies = document.get("latencyPercentilesSuccessful") if failed else document.get("latencyPercentiles")
    figures |= json_fields.read_statistics("e2el_ms", latencies, 1e3)
    figures |= {} if failed else json_fields.read_statistics("e2el_ms", summary, 1e3)
    mixed = failed and not read_mapping(latencies)
    yield _make_run(_OHA, figures, Load(), source, [f"{_OHA}: {_MIXED}"] if mixed else [])


OHA = ClientFormat(
    _OHA,
    (b'"statusCodeDistribution"',),
    lambda document: (
        "requestsPerSec" in read_mapping(document.get("summary")) and "statusCodeDistribution" in document
    ),
    _read_oha,
)

_METRIC = re.compile(r"\s{0,9}(?:[✓✗]\s)?([a-z_]{3,40})\.{0,80}\s?:\s(.{1,400})")
_TAGGED = re.compile(r"\s{0,9}(?:[✓✗]\s)?\{\s?expected_response:true\s?\}\.{0,80}\s?:\s(.{1,400})")
_EQUAL = re.compile(r"([a-z]{3}|p\(\d{1,2}(?:\.\d{1,3})?\))=(\S{1,30})")
_FAILED = re.compile(r"[\d.]{1,20}%\s{1,9}(?:✓\s)?(\d{1,18})(?:\s{1,20}✗\s|\sout of\s)(\d{1,18})")
_COUNTED = re.compile(r"(\d{1,18})\s{1,20}([\d.]{1,30})/s")
_TIME = re.compile(r"([\d.]{1,20}) ?([a-zµ]{1,5})")
_UNITS_MS = {
    "h": 3.6e6, "hour": 3.6e6, "hours": 3.6e6, "m": 6e4, "min": 6e4, "mins": 6e4,
    "s": 1e3, "sec": 1e3, "secs": 1e3, "ms": 1.0, "µs": 1e-3, "us": 1e-3, "ns": 1e-6,
}  # fmt: skip


def _parse_ms(text: str) -> float | None:
    """Parse a time of one or several units, as 1m2.5s, to milliseconds; None of anything else."""
    total_ms = 0.0
    for number, unit in (parts := _TIME.findall(text)):
        value, times = json_fields.parse_number(number), _UNITS_MS.get(unit)
        if value is None or times is None:
            return None
        total_ms += value * times
    return total_ms if parts and not _TIME.sub("", text).strip() else None


def read_report(text: str, path: Path) -> list[Reported]:
    """Read the summary that k6 or oha printed in a text, the first of each; [] of any other text."""
    if not any(mark.decode() in text for mark in PRINTED_MARKS):
        return []
    lines = [*page_reader.split_lines(text)]
    found = ((K6, _parse_k6(lines)), (OHA, _parse_oha(lines)))
    return [
        run
        for client, document in found
        if client.is_result(document)
        for run in client.read_runs(document, str(path))
    ]


def _parse_k6(lines: list[str]) -> dict[str, Any]:
    """Parse printed lines to the document that k6 writes as JSON; the first of a metric counts."""
    metrics: dict[str, Any] = {}
    for line in lines:
        if (tagged := _TAGGED.fullmatch(line)) is not None and _DURATION in metrics:
            metrics.setdefault(_EXPECTED, _parse_trend(tagged[1]))
        elif (named := _METRIC.fullmatch(line)) is not None:
            name, text = named.groups()
            failed, counted = _FAILED.match(text), _COUNTED.match(text)
            values = _parse_trend(text)
            if name == "http_req_failed" and failed is not None:
                values = {"passes": json_fields.parse_count(failed[1])}
            elif counted is not None:
                rate = json_fields.parse_number(counted[2])
                values = {"count": json_fields.parse_count(counted[1]), "rate": rate}
            elif name == "vus_max":
                values = {key: json_fields.parse_count(value) for key, value in _EQUAL.findall(text)}
            metrics.setdefault(name, values)
    return {"metrics": {name: values for name, values in metrics.items() if values}}


def _parse_trend(text: str) -> dict[str, Any]:
    return {key: _parse_ms(value) for key, value in _EQUAL.findall(text)}


_LABELLED = re.compile(r"\s{0,9}([A-Z][A-Za-z/ ]{2,20}):\s{1,20}(\S[^\n]{0,60})")
_RANKED = re.compile(r"\s{0,9}(\d{1,2}(?:\.\d{1,3})?)% in (\S[^\n]{0,40})")
_STATUS = re.compile(r"\s{0,9}\[(\d{3})\] (\d{1,18}) responses?")
_ERROR = re.compile(r"\s{0,9}\[(\d{1,18})\] (\S[^\n]{0,300})")
_OHA_LABELS = ("total", "slowest", "fastest", "average")


def _parse_oha(lines: list[str]) -> dict[str, Any]:
    """Parse printed lines to the document that oha writes as JSON; the first of a label counts."""
    summary: dict[str, Any] = {}
    ranks, statuses, errors = dict[str, Any](), dict[str, Any](), dict[str, Any]()
    for line in lines:
        if (status := _STATUS.fullmatch(line)) is not None:
            statuses.setdefault(status[1], json_fields.parse_count(status[2]))
        elif (error := _ERROR.fullmatch(line)) is not None:
            errors.setdefault(error[2], json_fields.parse_count(error[1]))
        elif (ranked := _RANKED.fullmatch(line)) is not None:
            ranks.setdefault(f"p{ranked[1]}", _parse_s(ranked[2]))
        elif (labelled := _LABELLED.fullmatch(line)) is not None:
            label = labelled[1].strip().lower()
            if label == "requests/sec":
                summary.setdefault("requestsPerSec", json_fields.parse_number(labelled[2].strip()))
            elif label in _OHA_LABELS:
                summary.setdefault(label, _parse_s(labelled[2]))
    return {
        "summary": summary,
        "latencyPercentiles": ranks,
        **({"statusCodeDistribution": statuses, "errorDistribution": errors} if statuses else {}),
    }


def _parse_s(text: str) -> float | None:
    time_ms = _parse_ms(text.strip())
    return None if time_ms is None else time_ms / 1e3
