"""Arm scores: an arm's quality, measured into files that a campaign keeps, and computed from these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from loadgen.base import signals
from loadgen.base.errors import MeasureError
from loadgen.base.parsing import MOST_TOKENS
from loadgen.base.signals import StopRequest
from loadgen.run.command.progress import Display
from loadgen.run.session import Session
from loadgen.server.exchange import ControlLoop
from loadgen.study.quality import quality_run
from loadgen.study.quality.arm_qualities import ITSELF
from loadgen.study.quality.divergence import QualityEvidence, judge_evidence
from loadgen.study.quality.probability_server import ProbabilityServer, probe_server
from loadgen.study.quality.quality_record import CANDIDATE, Quality
from loadgen.study.quality.quality_text import QualityPlan, read_text
from loadgen.study.quality.reference_file import ReferenceContents, ReferenceFile, read_reference
from loadgen.study.series.campaign.campaign_file import QualityTable

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
    changed = {"of_reference": True, "agreement": None, "perplexity_ratio": None, "why": why}
    return found.model_copy(update=changed)


def judge_scored(kept: ReferenceContents, scored: ReferenceContents) -> Quality:
    """Compute the quality of a candidate that has scored the reference's answers and the text."""
    same = scored.header.text_ids == kept.header.text_ids
    why = {} if same else quality_run.VOCABULARIES_DIFFER
    return judge_evidence(
        QualityEvidence(
            reference=kept.header.model,
            candidate=scored.header.model,
            **_pair_answers(kept, scored),
            reference_text=kept.segments,
            candidate_text=scored.segments if kept.segments else (),
            why=why if kept.segments else {**why, "text": quality_run.UNSCORED_REFERENCE},
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
            why={
                **explain_vocabularies(kept, sampled),
                "text": quality_run.explain_no_text(other.engine, other.model),
            },
            **_describe_origin(kept, sampled),
        )
    )


def explain_vocabularies(kept: ReferenceContents, sampled: ReferenceContents) -> dict[str, str]:
    """Explain which figures are None since a candidate has other tokens than the reference; {} if not."""
    return {} if kept.text.take_ids(sampled.text) else quality_run.VOCABULARIES_DIFFER


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
    header = measured.header
    return quality_run.describe_origin(header.settings, header.text_digest, {CANDIDATE: header.engine}, kept)


class ServerMeasuring(msgspec.Struct, frozen=True):
    """Measures an arm by the log-probabilities that its server reports, and goes on where its files stand."""

    plan: QualityPlan
    display: Display

    @classmethod
    def open(cls, table: QualityTable, display: Display) -> ServerMeasuring:
        """Read the table's text, and make what measures with it; raises UsageError."""
        return cls(QualityPlan(read_text(Path(table.text) if table.text else None), table.tokens), display)

    def sample_reference(self, session: Session, reference: Path) -> Quality:
        """Have the reference sample and score, into its file, and return its own quality: its noise floor."""
        with self._probe(session) as server:
            quality_run.record_reference(server, self.plan, reference, self.display.draw)
            kept = read_reference(reference)
        return judge_reference(kept)

    def score_reference(self, session: Session, reference: Path, scores: Path) -> Quality | None:
        """Have a candidate score the reference's file, and return its quality.

        None if it cannot score; then it has sampled, into `scores`.
        """
        with self._probe(session) as server:
            if not server.scores:
                quality_run.record_reference(server, self.plan, scores, self.display.draw)
                return None
            quality_run.QualityRun(
                server,
                replace(self.plan, tokens=MOST_TOKENS),  # the file's answers are what is wanted
                kept=(kept := read_reference(reference)),
                show=self.display.draw,
                scores_path=scores,
            ).measure()
        return judge_scored(kept, read_reference(scores))

    def score_back(self, session: Session, reference: Path, answers: Path, scores: Path) -> Quality:
        """Have the reference score a candidate's answers, and return the candidate's quality.

        Raises MeasureError if the reference cannot score either.
        """
        kept, sampled = read_reference(reference), read_reference(answers)
        other = sampled.header
        differ = explain_vocabularies(kept, sampled)
        measure = quality_run.AnswerMeasure(
            replace(self.plan, tokens=sampled.tokens), f"answers of {other.model}", self.display.draw
        )
        with self._probe(session) as server:
            if not server.scores:
                raise MeasureError(f"neither {kept.header.engine} nor {other.engine} can score a prompt")
            with closing(ReferenceFile(scores, replace(other, model=server.model, text_ids=()))) as file:
                quality_run.score_answers(server, () if differ else sampled.answers, measure, file)
        return judge_scored_back(kept, sampled, read_reference(scores))

    @contextmanager
    def _probe(self, session: Session) -> Iterator[ProbabilityServer]:
        """Find out what a session's server reports, and remove the progress that is shown in the block.

        A signal ends the block where it next waits for the server, and raises Stopped; a second one at once.
        """
        stop = StopRequest()
        access = replace(session.access, loop=ControlLoop(stop))
        with signals.defer_stop(signals.SIGNALS, stop.request_stop):
            try:
                with self.display.waiting(f"trying {access.shown_url}"):
                    server = probe_server(ProbabilityServer.of_session(replace(session, access=access)))
                yield server
            finally:
                self.display.close()
                stop.poll()
