"""Arm scores: an arm's quality, computed from the files of answers and scores that a campaign keeps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadgen.features.quality.divergence import QualityEvidence, judge_evidence
from loadgen.features.quality.quality_record import CANDIDATE, Quality
from loadgen.features.quality.quality_run import (
    UNSCORED_REFERENCE,
    VOCABULARIES_DIFFER,
    describe_origin,
    explain_no_text,
)
from loadgen.features.quality.reference_file import ReferenceContents, read_reference
from loadgen.study.arm_qualities import ITSELF

REFERENCE_FILE = "reference.jsonl.gz"
SCORES, BACK = ".jsonl.gz", "-back.jsonl.gz"  # after an arm's id


def judge_arm(directory: Path, arm: str, most_bytes: int | None = None) -> Quality:
    """Compute the quality of the arm of an id from the files of a campaign's quality folder.

    An arm without a file of its own is the reference. Raises UsageError of a file that cannot be read, or has
    more than `most_bytes` uncompressed.
    """
    kept = read_reference(directory / REFERENCE_FILE, most_bytes)
    if not (own := directory / f"{arm}{SCORES}").is_file():
        return judge_reference(kept)
    scored = read_reference(own, most_bytes)
    if not (back := directory / f"{arm}{BACK}").is_file():
        return judge_scored(kept, scored)
    return judge_scored_back(kept, scored, read_reference(back, most_bytes))


def judge_reference(kept: ReferenceContents) -> Quality:
    """Compute the reference's own quality: its noise floor, and its figures of the text."""
    found = judge_evidence(
        QualityEvidence(
            reference=kept.header.model,
            candidate=kept.header.model,
            answers=[line.answer for line in kept.answers],
            own=[line.own for line in kept.answers],
            reference_text=kept.segments,
            candidate_text=kept.segments,
            why={"kl": ITSELF},
            **_describe_origin(kept, kept),
        )
    )
    why = {**found.why, "agreement": ITSELF, "perplexity_ratio": ITSELF}
    return found.model_copy(update={"agreement": None, "perplexity_ratio": None, "why": why})


def judge_scored(kept: ReferenceContents, scored: ReferenceContents) -> Quality:
    """Compute the quality of a candidate that has scored the reference's answers and the text."""
    same = scored.header.text_ids == kept.header.text_ids
    why = {} if same else VOCABULARIES_DIFFER
    return judge_evidence(
        QualityEvidence(
            reference=kept.header.model,
            candidate=scored.header.model,
            **_pair_answers(kept, scored),
            reference_text=kept.segments,
            candidate_text=scored.segments if kept.segments else (),
            why=why if kept.segments else {**why, "text": UNSCORED_REFERENCE},
            **_describe_origin(kept, scored),
        )
    )


def judge_scored_back(
    kept: ReferenceContents, sampled: ReferenceContents, scored: ReferenceContents
) -> Quality:
    """Compute the quality of a candidate that has `sampled` the answers that the reference has `scored`."""
    other = sampled.header
    return judge_evidence(
        QualityEvidence(
            reference=kept.header.model,
            candidate=other.model,
            **_pair_answers(sampled, scored),
            candidate_sampled=True,
            reference_text=kept.segments,
            why={**explain_vocabularies(kept, sampled), "text": explain_no_text(other.engine, other.model)},
            **_describe_origin(kept, sampled),
        )
    )


def explain_vocabularies(kept: ReferenceContents, sampled: ReferenceContents) -> dict[str, str]:
    """Explain which figures are None since a candidate has other tokens than the reference; {} if not."""
    return {} if kept.text.take_ids(sampled.text) else VOCABULARIES_DIFFER


def _pair_answers(sampled: ReferenceContents, scored: ReferenceContents) -> Mapping[str, Any]:
    """Pair the answers of one file with the scores of the other, in whose order they are."""
    own = {line.answer: line.own for line in sampled.answers}
    lines = [line for line in scored.answers if line.answer in own]
    return {
        "answers": [line.answer for line in lines],
        "own": [own[line.answer] for line in lines],
        "other": [line.own for line in lines],
    }


def _describe_origin(kept: ReferenceContents, measured: ReferenceContents) -> dict[str, Any]:
    """Describe what figures are of, by the headers of the reference's file and of the candidate's."""
    header = measured.header
    return describe_origin(header.settings, header.text_digest, {CANDIDATE: header.engine}, kept)
