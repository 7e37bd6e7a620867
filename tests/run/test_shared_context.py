"""What a server that is started is asked for, where its engine shares one context out among few slots."""

from __future__ import annotations

import shlex
from typing import Any

from builders.loops import loop_over
from loadgen.plan import profile
from loadgen.plan.profile import Profile
from loadgen.run.attach import collect_settings
from loadgen.run.command.options import parse

SMALL = {"input_len": 1000, "output_len": 100}


def asked(line: str, *workloads: dict[str, Any]) -> tuple[int | None, int | None]:
    """Requests at once, and tokens of each."""
    profiles: list[Profile] = [profile.build(keys) for keys in workloads]
    found = collect_settings(parse(shlex.split(f"--launch {line}")), profiles)
    return found.max_running, found.context_len


@loop_over(
    ("workloads", "expected"),
    [
        ([{**SMALL, "max_concurrency": 8}], (8, 1536)),  # and a chat template's, in whole 256
        ([{**SMALL, "max_concurrency": 8, "range_ratio": "0.5"}], (8, 2048)),
        ([{**SMALL, "max_concurrency": 8, "prefix_len": 500}], (8, 2048)),
        (
            [{**SMALL, "max_concurrency": 8}, {"input_len": 4000, "output_len": 8, "max_concurrency": 2}],
            (8, 4352),
        ),
        ([{**SMALL, "max_concurrency": 1000}], (256, 1536)),  # it has no more
        ([{**SMALL, "max_concurrency": 8}, SMALL], (None, None)),  # one of them has no limit
        ([{**SMALL, "max_concurrency": 1}], (1, None)),  # a single one has all of the engine's own
        ([{**SMALL, "max_concurrency": 8, "input_dist": "uniform:min=1,max=9"}], (8, None)),
        ([{**SMALL, "max_concurrency": 8, "dataset_path": "rows.jsonl"}], (8, None)),
        ([{"output_len": 8, "ladder": [16, 4000], "max_concurrency": 2}], (2, 4352)),
    ],
)
def test_llamacpp_gets_slots_and_room_for_what_is_sent(
    workloads: list[dict[str, Any]], expected: tuple[int | None, int | None]
) -> None:
    assert asked("llamacpp --model m.gguf", *workloads) == expected


def test_what_was_given_stands() -> None:
    workload = {**SMALL, "max_concurrency": 8}
    assert asked("llamacpp --model m.gguf --max-running 4 --context-len 9", workload) == (4, 9)
    assert asked("llamacpp --model m.gguf --max-running 4", SMALL) == (4, 1536)


def test_other_engines_keep_their_own() -> None:
    assert asked("vllm --model m", {**SMALL, "max_concurrency": 8}) == (None, None)
