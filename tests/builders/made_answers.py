"""Made answers: checkpoints of a campaign with speeds, qualities and states, without a server or a model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from builders import made_qualities, made_runs
from builders.comparison_samples import HIGH, cells
from loadgen.facts.run_facts import Facts
from loadgen.report.load_identity import Load
from loadgen.study.answer.answer import CheckpointAnswer, make_answer
from loadgen.study.answer.answer_settings import AnswerRequest
from loadgen.study.compare import limits, model
from loadgen.study.compare.comparison import compare_runs
from loadgen.study.compare.model import ComparisonOptions
from loadgen.study.importers.clients.loadgen_runs import StoredLimit
from loadgen.study.quality.arm_qualities import find_run_quality
from loadgen.study.quality.quality_record import Quality
from loadgen.study.run_summary import Reported

NOISE = (1.0, 1.01, 0.99)  # of three repeats: an interval of 2.5 %


def made_quality(kl: float | None, half: float = 0.01, same: float = 0.94) -> Quality:
    """The quality of a checkpoint against bf16, its vocabulary another if `kl` is None."""
    if kl is None:
        return Quality(reference="org/bf16", candidate="org/c", why={"kl": "the vocabularies differ"})
    names = {"reference": "org/bf16", "candidate": "org/c"}
    same_first = made_qualities.interval(same, 0.006)
    return made_qualities.quality(kl, half, noise_floor=None, agreement=same_first, **names)


def keep_campaign(directory: Path, qualities: Mapping[str, Quality], **record: Any) -> None:
    """Write a campaign's record, whose reference and baseline are bf16, and the qualities of its arms."""
    arms = [{"checkpoint": name, "server": "vllm"} for name in ("bf16", *qualities)]
    contents = {"arms": arms, "baseline": "bf16", "quality": {"reference": "bf16"}, **record}
    (directory / "campaign.json").write_text(json.dumps(contents), "utf-8")
    (directory / "quality").mkdir(exist_ok=True)
    for name, quality in qualities.items():
        (directory / "quality" / f"{name}-vllm.json").write_text(quality.model_dump_json(), "utf-8")


def speeds(load: Load = HIGH, noise: Sequence[float] = NOISE, /, **means: float) -> list[Reported]:
    """Three cells of each checkpoint, its throughput around a mean."""
    return [run for name, mean in means.items() for run in cells(name, [mean * each for each in noise], load)]


def with_facts(runs: Sequence[Reported], **facts: Any) -> list[Reported]:
    """The runs as ours, with those facts and no arrivals."""
    made = made_runs.run(requests=2).facts
    known: Facts = replace(made, **facts)
    return [replace(run, result_facts=known) for run in runs]


def _with_qualities(directory: Path, runs: Sequence[Reported]) -> tuple[Reported, ...]:
    """The runs as they are read of a campaign."""
    return tuple(replace(run, quality=find_run_quality(directory / "cells" / "c", run.cell)) for run in runs)


def answered(
    directory: Path, runs: Sequence[Reported], searches: Sequence[StoredLimit] = (), **asked: Any
) -> CheckpointAnswer:
    """The answer of a campaign in a directory; `asked` are its settings."""
    ask = ComparisonOptions(campaign=model.read_campaign_settings([str(directory)]))
    runs = _with_qualities(directory, runs)
    searches = [replace(search, runs=_with_qualities(directory, search.runs)) for search in searches]
    tables = compare_runs(runs, ask) if runs else []
    request = AnswerRequest.read({**ask.campaign.answer, **asked})
    found = make_answer(tables, limits.compare_limits(searches, ask), ask, request)
    assert found is not None
    return found
