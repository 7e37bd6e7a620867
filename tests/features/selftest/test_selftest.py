"""The self-test searches, tells and ends as it says; the whole of it runs once, in short."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from builders.loops import loop_over
from builders.required import require
from loadgen import cli
from loadgen.base.errors import MeasureError
from loadgen.base.passages import render_passage
from loadgen.facts.run_facts import Calibration, Error
from loadgen.features.selftest import capacity, kept_selftests, selftest_command
from loadgen.features.selftest.capacity import (
    Capacity,
    Seen,
    SelftestClient,
    SelftestLoad,
    Sent,
    compare,
    make_transport_passage,
    make_workers_passage,
    search,
)
from loadgen.features.selftest.selftest_command import MODES, find_fault
from loadgen.host.environment import describe_machine
from loadgen.plan import profile
from loadgen.records.record import Record, Records
from loadgen.transport.capture_process import TRANSPORTS
from loadgen.transport.failure import Failure, FailureKind

MS = 1_000_000
NOTHING = (np.zeros(0, np.int64), np.zeros(0, np.int64))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def seen(held: bool = True, streams: int = 1, tokens: int = 10, **changes: Any) -> Seen:
    """A run at 50 tok/s a stream whose gaps are true, or twice as long."""
    true = np.array([20 * MS])
    gap = (true if held else 2 * true, true)
    plain = Seen(4, 0, 0, tokens, tokens, 0, 50.0 * streams, streams, NOTHING, gap, gap, NOTHING)
    return replace(plain, **changes)


# The search.


@dataclass
class Client:
    """Holds so many streams, and has time for so many attempts."""

    capacity: int
    attempts: int
    tried: list[int] = field(default_factory=list)

    def __call__(self, streams: int) -> Seen | str:
        if len(self.tried) == self.attempts:
            return "no time was left"
        self.tried.append(streams)
        return seen(streams <= self.capacity, streams)


# What it holds, attempts it has time for, held before, first tried, refused before;
# what is tried, and most held, bounded.
INF = float("inf")
SEARCHES = [
    (1000, 9, 256, 512, INF, [512, 1024], 512, True),
    (2048, 9, 256, 1024, INF, [1024, 2048, 4096], 2048, True),
    (2048, 2, 256, 1024, INF, [1024, 2048], 2048, False),  # no time for more
    (300, 9, 256, 1024, INF, [1024, 512], 256, True),
    (300, 0, 256, 1024, INF, [], 256, False),
    (10, 9, 0, 64, 256, [64, 16, 4, 8], 8, True),
    (100, 9, 0, 64, 256, [64, 128], 64, True),
    (0, 9, 0, 4, 16, [4, 1], 0, True),
    (0, 1, 0, 4, 16, [4], 0, True),
    (0, 9, 0, 1, 1, [], 0, True),  # not even one
]


@loop_over(("capacity", "attempts", "held", "start", "refused", "tried", "most", "bounded"), SEARCHES)
def test_the_search_finds_the_most_that_is_held(
    capacity: int, attempts: int, held: int, start: int, refused: float, tried: list[int], most: int,
    bounded: bool,
) -> None:  # fmt: skip
    client = Client(capacity, attempts)
    found = search(Capacity(held, 50.0 * held, False), start, refused, client)
    assert client.tried == tried
    assert found == Capacity(most, 50.0 * most, bounded, "" if bounded else "no time was left")


# Words.


@loop_over(
    ("run", "word"),
    [
        (seen(tokens=40), "ok"),
        (seen(tokens=39), "39 tokens of 40"),
        (seen(tokens=30, unlike=1), "1 of 4 responses with more or fewer chunks than were sent"),
        (seen(failed=2, first_error="truncated: x"), "2 of 4 failed, the first with truncated: x"),
    ],
)
def test_what_is_wrong_with_a_mode_is_said(run: Seen, word: str) -> None:
    assert find_fault(run, 40) == word


def calibrated(tokens_per_s: float, streams: int, bounded: bool) -> Calibration:
    error = Error(median_us=23_342.4, p99_us=45_274, max_us=1_060_274, p99_percent=73.64)
    return Calibration(
        measured=datetime(2025, 1, 2, tzinfo=UTC), environment="here", transport="httpx", streams=256,
        interval_ms=20.0, ttft=error, gap=error, e2e=error, events_per_read=1.0009,
        capacity_tokens_per_s=tokens_per_s, capacity_streams=streams, capacity_bounded=bounded,
        cpu_us_per_token=75.81,
    )  # fmt: skip


@loop_over(
    ("capacity", "words"),
    [
        ((50_000.0, 1024, True), "50,000 tok/s, on 1,024 streams"),
        ((50_000.0, 1024, False), "at least 50,000 tok/s, on 1,024 streams"),
        ((0.0, 0, True), "no load that was tried was held"),
    ],
)
def test_a_capacity_says_whether_there_may_be_more(capacity: tuple[float, int, bool], words: str) -> None:
    assert make_transport_passage(calibrated(*capacity), "wire").facts[0] == ("capacity", words)
    if not capacity[0]:  # of workers of which one held nothing there is no ratio
        table = require(make_workers_passage([calibrated(*capacity)], [""], "wire").table)
        assert table.body[0][:4] == ("1", "0", "0", "–")


@loop_over(
    ("keys", "load", "words"),
    [
        ({}, {"streams": 256}, "256 streams × 50 tok/s"),
        ({"max_concurrency": 8, "input_len": 5}, {"streams": 8, "input_tokens": 5}, "8 streams × 50 tok/s"),
        ({"max_concurrency": 8, "num_prompts": 1}, {"streams": 1}, "1 stream × 50 tok/s"),
        ({"backend": "openai-chat"}, {"streams": 256, "chat": True}, "256 streams × 50 tok/s"),
    ],
)
def test_the_load_of_a_run_to_come_is_its_profile_s(
    keys: dict[str, object], load: dict[str, Any], words: str
) -> None:
    found = SelftestLoad.from_profile(profile.build(keys))
    assert (found, found.words) == (SelftestLoad(**{"input_tokens": 1024, **load}), words)
    four = replace(found, tokens_per_message=4, interval_ms=8.0)
    assert four.words == f"{words.partition(' ×')[0]} × 500 tok/s, 4 tokens a chunk"


@loop_over(
    "words",
    ["--streams 0", "--interval-ms 0", "--interval-ms x", "--seconds -1", "--transport carrier-pigeon"],
)
def test_a_load_that_is_none_is_refused_in_one_line(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["selftest", *words.split()]) == 2
    said = capsys.readouterr().err
    assert words.split(maxsplit=1)[0] in said
    assert said.count("\n") == 1


# The whole.


@pytest.mark.whole
def test_a_null_server_that_does_not_start_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    assert cli.main(["selftest"]) == MeasureError.exit_code
    said = capsys.readouterr().err
    assert said == "loadgen: the null server did not start: it ended without output\n"


@pytest.mark.whole
@pytest.mark.timeout(180)  # many runs in turn
def test_the_whole_self_test_in_short(capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--streams 4 --interval-ms 5 --seconds 0.6"
    assert cli.main(["selftest", *flags.split()]) == 0
    printed = capsys.readouterr().out.splitlines()
    transports = [name for name, kind in TRANSPORTS.items() if not kind.explain_missing_right()]
    assert max(map(len, printed[:-1])) <= 80
    for mode in MODES:
        assert [*mode.words.split(), *["ok"] * len(transports)] in [line.split() for line in printed]
    assert "4 streams × 200 tok/s, against the null server on this machine:" in printed
    environment = kept_selftests.environment_digest(describe_machine())
    for transport in transports:
        found = kept_selftests.read_remembered(transport, environment)
        assert found is not None
        assert (found.streams, found.interval_ms) == (4, 5.0)
        assert found.cpu_us_per_token > 0
        assert found.ttft.median_us > 0
        assert set(render_passage(make_transport_passage(found, found.transport)).splitlines()) <= set(
            printed
        )


@pytest.mark.whole
def test_a_client_is_measured_at_several_tokens_a_message_and_over_chat() -> None:
    load = SelftestLoad(streams=2, interval_ms=5.0, tokens_per_message=3, chat=True)
    found, _ = capacity.calibrate(load, SelftestClient("wire"), 0.5)
    assert found.events_per_read >= 1.0
    assert kept_selftests.read_remembered("wire", found.environment) is None  # keeping is the caller's


@pytest.mark.whole
def test_a_mode_measured_wrong_shows_in_table_and_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(selftest_command, "MODES", (MODES[0],))
    monkeypatch.setattr(
        selftest_command, "find_fault", lambda seen, tokens: f"{seen.tokens} tokens of {tokens}!"
    )
    flags = "--streams 1 --interval-ms 5 --seconds 0.1 --transport wire --no-save"
    assert cli.main(["selftest", *flags.split()]) == MeasureError.exit_code
    printed = capsys.readouterr().out
    assert f"{MODES[0].words} wrong" in " ".join(printed.split())
    assert f"{MODES[0].words}, wire: 72 tokens of 72!" in printed
    assert not kept_selftests.cache_path().exists()


@pytest.mark.whole
def test_workers_are_measured_in_growing_number_and_kept_by_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selftest_command, "MODES", ())
    flags = "--streams 2 --interval-ms 5 --seconds 1 --transport wire --workers 3"
    assert cli.main(["selftest", *flags.split()]) == 0
    printed = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in printed]
    heading = next(at for at, row in enumerate(rows) if row[:2] == ["workers", "streams"])
    assert [row[0] for row in rows[heading:] if row and row[0].isdecimal()][:3] == ["1", "2", "3"]
    environment = kept_selftests.environment_digest(describe_machine())
    found = [kept_selftests.read_remembered("wire", environment, workers) for workers in (1, 2, 3)]
    assert [(each.workers, each.streams) for each in found if each] == [(1, 2), (2, 4), (3, 6)]
    assert max(map(len, printed[:heading])) <= 80


@pytest.mark.whole
def test_one_worker_is_measured_once_for_all_later_runs() -> None:
    workload = profile.build({"max_concurrency": 2, "input_len": 4})
    measured = capacity.measure_one_worker(workload, "wire", Records.from_records([]))
    assert (measured.transport, measured.workers, measured.streams) == ("wire", 1, 2)
    assert capacity.measure_one_worker(workload, "wire", Records.from_records([])) == measured


CUT = Failure(FailureKind.TRUNCATED, "x")


def record(index: int, sent_ns: int, arrival_ns: list[int], **changes: object) -> Record:
    found = Record(index, 0, sent_ns, sent_ns, arrival_ns[-1] if arrival_ns else sent_ns)
    found.arrival_ns = np.array(arrival_ns, np.int64)
    found.tokens = np.ones(len(arrival_ns), np.int64)
    found.output_tokens = len(arrival_ns)
    for name, value in changes.items():
        setattr(found, name, value)
    return found


def logged(*rows: tuple[int, list[int]]) -> Mapping[int, Sent]:
    return {i: Sent(f"r{i}", received_ns, wrote_ns) for i, (received_ns, wrote_ns) in enumerate(rows)}


def test_each_figure_is_set_beside_the_true_one() -> None:
    records = Records.from_records(
        [
            record(0, 1 * MS, [10 * MS, 20 * MS, 31 * MS]),
            record(1, 2 * MS, [12 * MS, 22 * MS, 32 * MS], shared_reads=1),
        ]
    )
    wrote = [9 * MS, 20 * MS, 30 * MS]
    seen = compare(records, logged((1 * MS, wrote), (3 * MS, [ns + MS for ns in wrote])))
    assert [figure.tolist() for figure in seen.ttft] == [[9 * MS, 10 * MS], [8 * MS, 7 * MS]]
    assert [figure.tolist() for figure in seen.gap] == [
        [10 * MS, 11 * MS, 10 * MS, 10 * MS],
        [11 * MS, 10 * MS, 11 * MS, 10 * MS],
    ]
    assert [figure.tolist() for figure in seen.later_gap] == [[11 * MS, 10 * MS], [10 * MS, 10 * MS]]
    assert [figure.tolist() for figure in seen.e2e] == [[30 * MS, 30 * MS], [29 * MS, 28 * MS]]
    assert (seen.requests, seen.failed, seen.unlike) == (2, 0, 0)
    assert (seen.tokens, seen.messages, seen.streams) == (6, 6, 2)
    assert seen.tokens_per_s == pytest.approx(6 / 0.022)
    assert seen.events_per_read == 6 / 5


@loop_over(
    ("found", "counts"),
    [
        (record(0, MS, [5 * MS, 6 * MS]), (0, 0, 2)),
        (record(0, MS, [5 * MS]), (0, 1, 0)),  # a message was not seen
        (record(0, MS, [5 * MS, 6 * MS, 7 * MS]), (0, 1, 0)),
        (record(9, MS, [5 * MS, 6 * MS]), (0, 1, 0)),  # the server knows nothing of it
        (record(0, MS, [5 * MS, 6 * MS], failure=Failure(FailureKind.TIMEOUT, "late")), (1, 0, 0)),
    ],
)
def test_what_differs_from_the_log_is_counted_and_not_measured(
    found: Record, counts: tuple[int, int, int]
) -> None:
    seen = compare(Records.from_records([found]), logged((MS, [5 * MS, 6 * MS])))
    assert (seen.failed, seen.unlike, seen.messages) == counts
    assert seen.first_error == ("timeout: late" if seen.failed else "")
    assert len(seen.gap[0]) == len(seen.gap[1]) == max(0, seen.messages - 1)


WROTE_NS = [20 * MS, 30 * MS, 40 * MS]


@loop_over(
    ("found", "held"),
    [
        ([record(0, MS, [24 * MS, 30 * MS, 40 * MS])], True),  # only later gaps decide
        ([record(0, MS, WROTE_NS), record(1, MS, WROTE_NS[:2])], False),
        ([record(0, MS, WROTE_NS), record(1, MS, WROTE_NS, failure=CUT)], False),
    ],
)
def test_a_late_first_message_is_held_a_failure_or_a_missing_one_not(found: list[Record], held: bool) -> None:
    assert compare(Records.from_records(found), logged(*[(MS, WROTE_NS)] * 2)).is_held(1) is held


def test_nothing_seen_is_nothing_held() -> None:
    seen = compare(Records.from_records([]), {})
    assert (seen.requests, seen.messages, seen.tokens_per_s, seen.events_per_read) == (0, 0, 0.0, 0.0)
    assert not seen.is_held(0)
