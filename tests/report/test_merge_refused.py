"""Merge: what is no run of one plan's shards is refused in a line that names it, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import made_runs, shard_runs
from builders.loops import loop_over
from builders.shard_runs import divided, named, part, selected, shard
from loadgen import __version__, cli
from loadgen.base.errors import UsageError
from loadgen.base.structs import replace
from loadgen.features.shards import merge
from loadgen.report.run import Run
from loadgen.report.run_directory import Result

RUN = made_runs.run()
TWO = divided(RUN, 2)


def other(**changes: Any) -> list[Result]:
    """The first shard, and the second with these facts."""
    return [TWO[0], part(RUN, 1, 2, **changes)]


def other_profile(**keys: Any) -> list[Result]:
    """The first shard, and the second with a profile of these keys."""
    return other(profile=RUN.facts.profile.model_copy(update=keys))


def holding(indices: list[int], number: int = 1, of: int = 2, **changes: Any) -> Result:
    """Shard `number` with these requests."""
    mine = selected(RUN.records, np.array(indices))
    return Result(part(RUN, number, of, **changes).facts, mine)


SERVER = RUN.facts.server
REFUSED: dict[str, tuple[list[Result], str]] = {
    "none": ([], "nothing to merge: name the run directories that the shards left"),
    "no shard": ([TWO[0], RUN], "runs/1 is not a shard: merge joins runs of `loadgen bench --shard I/N`"),
    "a merged run": (
        [merge.merge_results(named(TWO)), TWO[1]],
        "runs/0 is merged already: name the run directories of the shards themselves",
    ),
    "a number beyond": (
        [part(RUN, 1, 2, shard=shard(2, 2))],
        "runs/0: result.json is damaged: there is no shard 2/2, they count from 0",
    ),
    "another version": (
        other(shard=shard(1, 2, version="0.0.9")),
        f"runs/0 and runs/1 differ in loadgen version: {__version__} and 0.0.9: "
        "merge the shards of one command",
    ),
    "another format": (other(format=1), "runs/0 and runs/1 differ in format: 2 and 1: merge the shards"),
    "another number of shards": (
        [TWO[0], part(RUN, 1, 3)],
        "runs/0 and runs/1 differ in number of shards: 2 and 3: merge the shards",
    ),
    "another profile": (
        other_profile(max_concurrency=8, output_len=3),
        "runs/0 and runs/1 differ in profile: output_len 16 and 3, max_concurrency 4 and 8: merge",
    ),
    "another seed": (other(seed=8), "runs/0 and runs/1 differ in seed: 7 and 8: merge the shards"),
    "another repeat": (other(repeat=1), "runs/0 and runs/1 differ in repeat: 0 and 1: merge the shards"),
    "another engine": (
        other(server=replace(SERVER, version="2")),
        "runs/0 and runs/1 differ in engine: vLLM 1 and vLLM 2: merge the shards",
    ),
    "another model": (
        other(server=replace(SERVER, model="org/n")),
        "runs/0 and runs/1 differ in model: org/m and org/n: merge the shards",
    ),
    "other targets": (
        other(targets=("http://a", "http://b")),
        "runs/0 and runs/1 differ in base URLs:  and http://a, http://b: merge the shards",
    ),
    "another plan": (
        other(plan_digest="abd"),
        "runs/0 and runs/1 differ in plan digest: abc and abd: merge the shards of one command, run by the",
    ),
    "another length of the plan": (
        other(requests=30),
        "runs/0 and runs/1 differ in planned requests: 24 and 30: merge the shards",
    ),
    "the same shard twice": ([TWO[1], TWO[1]], "runs/0 and runs/1 are both shard 1/2: name each shard once"),
    "requests twice": (
        [holding([0, 2, 4, 6]), holding([1, 2, 3, 4], 0)],
        "runs/1 and runs/0 both hold requests 2, 4: one is damaged",
    ),
    "requests of others": (
        [holding([0, 1, 2, 4, 5])],
        "runs/0 is shard 1/2 and holds requests of others: 0, 2, 4",
    ),
    "requests beyond the plan": (
        [Result(part(RUN, 1, 2, requests=20).facts, TWO[1].records)],
        "runs/0 holds requests 21, 23 of a plan of 20: it is damaged",
    ),
    "clocks that cannot be": (
        [TWO[0], part(RUN, 1, 2, shard=shard_runs.elsewhere(1, 2, 2 * 10**12))],
        "the shards' times cannot be of one clock: their clock readings are wrong",
    ),
}


@loop_over("name", REFUSED)
def test_what_is_of_another_run_is_refused_and_named(name: str) -> None:
    results, words = REFUSED[name]
    with pytest.raises(UsageError) as refused:
        merge.merge_results(named(results))
    assert str(refused.value).startswith(words)


def test_paths_of_the_same_data_may_differ() -> None:
    (changed,) = other_profile(dataset_path="/elsewhere/rows.jsonl")[1:]
    assert len(merge.merge_results(named([TWO[0], changed])).records) == 24


@pytest.mark.parametrize(
    ("indices", "words"),
    [
        ([], ""),
        ([3], "3"),
        ([27, 12, 13, 14], "12–14, 27"),
        (list(range(0, 40, 2)), "0, 2, 4, 6, 8, 10, 12, 14 and 12 more"),
    ],
)
def test_indices_are_named_in_ranges(indices: list[int], words: str) -> None:
    from loadgen.features.shards.merge import format_ranges

    assert format_ranges(np.array(indices, np.int64)) == words


def of(*names: str) -> Callable[[Path], list[str]]:
    return lambda base: [str(base / name) for name in names]


@loop_over(
    ("words", "message"),
    [
        (of(), ""),  # the help
        (of("0", "0"), "{base}/0 is named twice: name each shard once"),
        (of("0", "1/../0"), "{base}/1/../0 is named twice: name each shard once"),
        (of("0", "nowhere"), "{base}/nowhere is not a run directory: "),
        (of("0", "empty"), "{base}/empty is not a run directory: "),
        (of("0", "damaged"), "{base}/damaged: result.json or arrivals.npz is damaged: "),
        (of("0", "whole"), "{base}/whole is not a shard: merge joins runs of `loadgen bench --shard I/N`"),
        (
            lambda base: [*of("0", "1")(base), "--output", str(base / "0")],
            "{base}/0 holds a run already: choose",
        ),
        (lambda base: [*of("0", "1")(base), "--output", "/proc/x"], "cannot write /proc/x: "),
        (lambda base: [*of("0", "1")(base), "--layout", "x"], "--layout x: no such layout"),
        (lambda base: ["--outpt", "x", str(base)], "unknown flag --outpt, did you mean"),
    ],
)
def test_a_wrong_command_is_one_line(
    words: Callable[[Path], list[str]], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, run in {"0": TWO[0], "1": TWO[1], "whole": RUN, "damaged": TWO[1]}.items():
        Run(run).save(tmp_path / name)
    (tmp_path / "empty").mkdir()
    (tmp_path / "damaged" / "result.json").write_text("{", "utf-8")
    before = sorted(path.name for path in tmp_path.iterdir())
    assert cli.main(["merge", *words(tmp_path)]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("loadgen: " + message.format(base=tmp_path) if message else "")
    assert said.err.count("\n") == bool(message)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_merging_by_hand_takes_a_list() -> None:
    with pytest.raises(UsageError, match="expected a list of runs or directories"):
        merge.merge("runs/1")
