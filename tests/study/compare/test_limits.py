"""Limits compared: how many times the load of the baseline a checkpoint serves, and how sure that is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders.comparison_samples import cell, run
from builders.made_limits import TTFT, limit_record
from builders.required import require
from loadgen.study import compare_command
from loadgen.study.compare import limits
from loadgen.study.compare.limits import ComparedLimits
from loadgen.study.compare.model import ComparisonOptions, Decision, Effect
from loadgen.study.importers.clients.loadgen_runs import StoredLimit
from loadgen.study.limit_record import LIMIT, LimitEstimate

ASK = ComparisonOptions()


def search(
    name: str, value: float | None, low: float | None = None, high: float | None = None, **changes: Any
) -> StoredLimit:
    """A search with that answer; `repeat` places it in a campaign."""
    repeat = changes.pop("repeat", None)
    made = run(name, 100.0, cell=None if repeat is None else cell(name, repeat))
    estimate = None if value is None else LimitEstimate(value=value, low=low, high=high)
    return StoredLimit(Path(f"{name}-{repeat}"), limit_record(limit=estimate, **changes), (made,))


PAIR = search("m-BF16", 10.0, 9.5, 10.5), search("m-FP8", 18.0, 17.1, 19.0)


def one(*searches: StoredLimit, ask: ComparisonOptions = ASK) -> ComparedLimits:
    (table,) = limits.compare_limits(searches, ask)
    return table


def judged(*searches: StoredLimit) -> Effect:
    """The effect of the second row."""
    return require(one(*searches).rows[1].effect)


def test_the_answer_is_a_sentence_and_a_row() -> None:
    table = one(*PAIR)
    words = "m-FP8 serves 1.80× (1.67–1.94) the requests/s of m-BF16 at this objective"
    assert limits.describe_limit_ratio(table, table.rows[1]) == words
    drawn = limits.make_limit_table(table)
    assert drawn.body == (
        ("m-BF16", "10", "9.5 to 10.5", "1", "", "baseline"),
        ("m-FP8", "18", "17.1 to 19", "1", "1.80× (1.67–1.94)", "more"),
    )
    assert drawn.notes[:2] == (words, limits.WITHIN)
    assert limits.describe_limits(table) == f"Highest request rate at {TTFT}: 2050 in / 128 out"


def test_repeated_searches_are_the_units_of_a_paired_test() -> None:
    luck = (1.0, 1.1, 0.9)
    searches = [
        search(name, value * share, repeat=repeat)
        for name, value in (("m-BF16", 10.0), ("m-FP8", 20.0))
        for repeat, share in enumerate(luck)
    ]
    effect = judged(*searches)
    assert (effect.paired, effect.units, effect.call) == (True, 3, Decision.FASTER)
    assert effect.ratio == pytest.approx(2.0)
    assert effect.why != limits.WITHIN
    limit = require(one(*searches).rows[0].limit)
    assert limit.value == pytest.approx(10 * np.prod(luck) ** (1 / 3))
    outside = judged(*(search("m-BF16", v) for v in (10, 10.2)), *(search("m-FP8", v) for v in (20, 20.4)))
    assert (outside.paired, outside.call) == (False, Decision.FASTER)


def test_a_search_without_a_limit_is_a_row_and_in_no_figure() -> None:
    open_ended = search("m-FP8", None, highest_passing=512.0)
    drawn = limits.make_limit_table(one(PAIR[0], open_ended))
    assert drawn.body[1] == ("m-FP8", "-", "-", "0", "", "no verdict")
    assert "m-FP8: limit: at least 512 requests/s, not in the figures" in drawn.notes
    row = one(*PAIR, open_ended).rows[1]
    assert (row.found, len(row.searches)) == (1, 2)


def test_two_searches_are_printed_and_written_with_every_digit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("bf16", 10.0), ("fp8", 18.0)):
        estimate = LimitEstimate(value=value, low=0.95 * value, high=1.05 * value)
        record = limit_record(name=name, runs=(), limit=estimate)
        (tmp_path / name).mkdir()
        (tmp_path / name / LIMIT).write_text(record.model_dump_json())
    places = [str(tmp_path / "bf16"), str(tmp_path / "fp8")]
    assert compare_command.main(places) == 0
    out, errors = capsys.readouterr()
    assert errors == ""
    assert "fp8 serves 1.80×" in out
    assert max(map(len, out.splitlines())) <= 80
    assert compare_command.main([*places, "--json"]) == 0
    (made,) = json.loads(capsys.readouterr().out)["limits"]
    assert made["rows"][1]["effect"]["call"] == "more"
    assert compare_command.main([*places, "--csv"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header == (
        "objectives,about,axis,checkpoint,baseline,searches,limit,limit_low,limit_high,call,ratio,low,high,p,"
        "p_adjusted,p_equivalent,units,paired,why"
    )
    assert len(rows) == 2
    assert compare_command.main([*places, "--markdown"]) == 0
    assert "| fp8 | 18 |" in capsys.readouterr().out
