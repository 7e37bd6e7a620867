"""Merge: whatever is wrong with a run is found in its merged shards, in the same words."""

from __future__ import annotations

import pytest

from builders.loops import loop_over
from builders.provoked_shards import OF_SHARDS
from builders.shard_runs import by_workers, divided, named
from loadgen.features.shards import merge
from loadgen.report.run_directory import Result
from loadgen.verdict import verdict
from verdict.test_doubts import PROVOKED


@pytest.mark.parametrize("of", [pytest.param(2, marks=pytest.mark.long), 7])
@loop_over("name", [name for name in PROVOKED if name not in OF_SHARDS])
def test_a_doubt_of_a_run_is_that_of_its_merged_shards(name: str, of: int) -> None:
    case, _, _ = PROVOKED[name]
    run = Result(case.facts, case.records)
    merged = merge.merge_results(named(divided(run, of)))
    assert verdict.encode_verdict(merged.verdict) == verdict.encode_verdict(by_workers(run, of).verdict)
