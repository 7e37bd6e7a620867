"""The layout of vLLM's sweeps: a folder for each combination, whatever its values are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from builders.loops import loop_over
from loadgen.plan.profile import Profile
from loadgen.study.series.sweep import vllm_layout
from loadgen.study.series.sweep.grid import GridPoint


def point(settings: Mapping[str, Any], serve: Mapping[str, str] | None = None) -> GridPoint:
    return GridPoint(0, dict(settings), dict(serve or {}), 0, Profile())


def test_a_folder_is_named_by_what_is_varied() -> None:
    of = point({"max_concurrency": 4, "temperature": 0.5}, {"max-num-seqs": "8"})
    assert (
        vllm_layout._name_combination(of) == "SERVE--max_num_seqs=8-BENCH--max_concurrency=4-temperature=0.5"
    )


@loop_over(
    ("one", "other"),
    [
        ({"dataset_path": "ds/a.jsonl"}, {"dataset_path": "ds_a.jsonl"}),
        ({"dataset_path": f"{'x' * 300}/a"}, {"dataset_path": f"{'x' * 300}/b"}),
        ({"request_rate": 0.1234567}, {"request_rate": 0.1234568}),
        ({"dataset_path": "ä"}, {"dataset_path": "ö"}),
    ],
)
def test_no_two_combinations_share_a_folder(one: dict[str, Any], other: dict[str, Any]) -> None:
    names = {vllm_layout._name_combination(point(settings)) for settings in (one, other)}
    assert len(names) == 2
    assert all(len(name.encode()) <= 200 and "/" not in name for name in names)


def test_what_was_varied_has_the_types_of_vllms_parameters(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text("{}", "utf-8")
    serve = {"max-num-seqs": "8", "gpu-memory-utilization": "0.9", "enforce-eager": "true", "dtype": "half"}
    varied = vllm_layout._read_run(tmp_path, point({"request_rate": float("inf")}, serve))
    assert varied == {
        "max_num_seqs": 8,
        "gpu_memory_utilization": 0.9,
        "enforce_eager": True,
        "dtype": "half",
        "request_rate": "inf",
        "run_number": 0,
    }
    json.dumps(varied, allow_nan=False)
