"""Qualities with given figures, and rows of comparisons that have them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from builders.comparison_samples import cells
from builders.markov_chain import disturb, make_chain
from loadgen.study.quality.arm_qualities import judge_arm, read_arm_quality
from loadgen.study.quality.quality_record import FORWARD, ITSELF, KlDivergence, MeanInterval, Quality
from loadgen.study.quality.reference_file import (
    AnswerLine,
    ReferenceFile,
    ReferenceHeader,
    ReferenceLine,
    SegmentLine,
)
from loadgen.study.run_summary import Reported
from loadgen.study.verify.proof import encode_record


def interval(mean: float, half: float) -> MeanInterval:
    """A mean and its interval."""
    return MeanInterval(mean=mean, low=mean - half, high=mean + half)


def quality(kl: float, half: float, **keys: Any) -> Quality:
    """A candidate's quality, with a KL divergence of 20,000 tokens."""
    ends = interval(kl, half).model_dump()
    divergence = KlDivergence(
        **ends, tokens=20_000, answers=1250, direction=FORWARD, self_check=interval(1, 0.01)
    )
    figures = {"noise_floor": interval(2e-4, 1e-4), "agreement": interval(0.941, 0.006)}
    return Quality(**{"reference": "bf16", "candidate": "m", "kl": divergence, **figures, **keys})


def reference() -> Quality:
    """The reference's own."""
    why = dict.fromkeys(("kl", "agreement", "perplexity_ratio"), ITSELF)
    floor = interval(2e-4, 1e-4)
    return Quality(reference="bf16", candidate="bf16", of_reference=True, noise_floor=floor, why=why)


def rows(name: str, speeds: Sequence[float], found: Quality | None) -> list[Reported]:
    """A row's runs in a campaign, whose server has this quality."""
    return [replace(run, quality=found) for run in cells(name, speeds)]


def keep_scores(directory: Path, tokens: int = 640) -> list[str]:
    """A campaign's quality folder with the scores of four arms, as their servers gave them; their ids.

    b scored what the reference a sampled, c could not and was scored by a, d has other tokens.
    """
    a, b, rng = make_chain(), disturb(make_chain(), 0.05), np.random.default_rng(1)
    path, text = (model.walk(rng.integers(0, 64, 10), tokens // 10, rng) for model in (a, a))
    mine = b.walk(path[:, 0], tokens // 10, rng)
    ids = tuple(tuple(map(int, row)) for row in text)
    plan = {"answer_tokens": 64, "chat": False}
    head = ReferenceHeader(model="a", engine="vLLM", settings=plan, text_digest="0f", text_ids=ids)
    own, answers, back = map(a.score, path), a.answer(path), b.answer(mine)

    def keep(name: str, header: ReferenceHeader, lines: Iterable[ReferenceLine]) -> None:
        with closing(ReferenceFile(directory / f"{name}.jsonl.gz", header)) as file:
            file.append(lines)

    directory.mkdir(parents=True)
    segments = [SegmentLine(a.score_segment(row)) for row in text]
    keep("reference", head, [*segments, *map(AnswerLine, answers, own)])
    scored = map(AnswerLine, answers, map(b.score, path))
    keep("b-x", replace(head, model="b"), [*(SegmentLine(b.score_segment(row)) for row in text), *scored])
    keep("c-x", replace(head, model="c", engine="llama.cpp"), map(AnswerLine, back))
    keep("c-x-back", replace(head, text_ids=()), map(AnswerLine, back, map(a.score, mine)))
    keep("d-x", replace(head, model="d", text_ids=ids[::-1]), segments[::-1])
    tasks = [("a", "sample"), ("b", "score"), ("c", "score"), ("c", "score back"), ("d", "score")]
    rows = [{"kind": kind, "arm": f"{arm} on x", "tokens": tokens} for arm, kind in tasks]
    (directory / "tasks.json").write_text(json.dumps(rows))
    for arm in (arms := ["a-x", "b-x", "c-x", "d-x"]):
        made = judge_arm(directory, arm).model_dump(mode="json")
        made["settings"]["tokens"] = tokens
        (directory / f"{arm}.json").write_bytes(encode_record(made))
    return arms


def read_qualities(campaign: Path) -> dict[str, Quality]:
    """The quality of each arm of a stored campaign that has one, by the arm's name."""
    arms = json.loads((campaign / "campaign.json").read_text("utf-8"))["arms"]
    pairs = [(arm["checkpoint"], arm["server"]) for arm in arms]
    found = {" on ".join(pair): read_arm_quality(campaign, *pair) for pair in pairs}
    return {name: quality for name, quality in found.items() if quality is not None}
