"""Quality servers: what a campaign measures of an arm's quality, kept in files that it goes on with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
from msgspec.structs import replace

from loadgen.base import clock, signals
from loadgen.base.errors import MeasureError
from loadgen.base.parsing import MOST_TOKENS
from loadgen.base.signals import StopRequest
from loadgen.features.quality.divergence import QualityEvidence, estimate_divergence, judge_evidence
from loadgen.features.quality.probability_server import ProbabilityServer, probe_server
from loadgen.features.quality.quality_measure import (
    AnswerMeasure,
    TokenizedText,
    score_answers,
    score_text,
    tokenize_text,
)
from loadgen.features.quality.quality_record import Quality, SampledAnswer, TextSegment, TokenScores
from loadgen.features.quality.quality_run import QualityProgress, make_header, record_reference
from loadgen.features.quality.quality_text import read_text
from loadgen.features.quality.reference_file import (
    AnswerLine,
    ReferenceContents,
    ReferenceFile,
    SegmentLine,
    read_reference,
)
from loadgen.features.quality.text_parts import QualityPlan
from loadgen.run.command.progress import Display
from loadgen.run.session import Session
from loadgen.server.exchange import ControlLoop
from loadgen.study.arm_qualities import ITSELF
from loadgen.study.series.campaign.campaign_file import QualityTable

_VOCABULARY = "the vocabularies differ: the same text has other tokens; bits per byte compare them"


class ServerMeasuring(msgspec.Struct, frozen=True):
    """Measures an arm by the log-probabilities that its server reports: `QualityMeasuring`."""

    plan: QualityPlan
    display: Display

    @classmethod
    def open(cls, table: QualityTable, display: Display) -> ServerMeasuring:
        """Read the table's text, and make what measures with it; raises UsageError."""
        return cls(QualityPlan(read_text(Path(table.text) if table.text else None), table.tokens), display)

    def sample_reference(self, session: Session, reference: Path) -> Quality:
        """Have the reference sample and score, into its file, and return its own quality: its noise floor."""
        with self._probe(session) as server:
            kept = record_reference(server, self.plan, reference, self.display.draw)
        found = self._judge(
            QualityEvidence(
                reference=server.model,
                candidate=server.model,
                answers=[line.answer for line in kept.answers],
                own=[line.own for line in kept.answers],
                reference_text=kept.segments,
                candidate_text=kept.segments,
                why={"kl": ITSELF},
            ),
            kept,
            server.engine,
        )
        why = {**found.why, "agreement": ITSELF, "perplexity_ratio": ITSELF}
        return found.model_copy(update={"agreement": None, "perplexity_ratio": None, "why": why})

    def score_reference(self, session: Session, reference: Path, scores: Path) -> Quality | None:
        """Have a candidate score the reference's file, and return its quality.

        None if it cannot score; then it has sampled, into `scores`.
        """
        kept, segments = read_reference(reference), list[TextSegment]()
        with self._probe(session) as server:
            if not server.scores:
                record_reference(server, self.plan, scores, self.display.draw)
                return None
            text = tokenize_text(server, self.plan)
            same = text.has_ids(kept.header.text_ids)
            if same:  # a token that begins a prompt is that of the reference
                sizes = tuple(segment.scored_bytes for segment in kept.segments)
                text = TokenizedText(kept.header.text_ids, sizes or text.scored_bytes)
            lines = kept.answers if same else ()
            with closing(ReferenceFile(scores, make_header(server, self.plan, text))) as file:
                if kept.segments:
                    segments = self._score_text(server, text, file)
                scored = self._score_answers(server, lines, file)
        why = {} if same else dict.fromkeys(("kl", "noise_floor"), _VOCABULARY)
        if not kept.segments:
            why["text"] = f"{kept.header.engine} ({kept.header.model}) scores no text"
        return self._judge(
            QualityEvidence(
                reference=kept.header.model,
                candidate=server.model,
                answers=[line.answer for line in lines],
                own=[line.own for line in lines],
                other=[scored.get(line.answer) for line in lines],
                reference_text=kept.segments,
                candidate_text=segments,
                why=why,
            ),
            kept,
            server.engine,
        )

    def score_back(self, session: Session, reference: Path, answers: Path, scores: Path) -> Quality:
        """Have the reference score a candidate's answers, and return the candidate's quality.

        Raises MeasureError if the reference cannot score either.
        """
        kept, sampled = read_reference(reference), read_reference(answers)
        other = sampled.header
        same = TokenizedText(kept.header.text_ids, ()).has_ids(other.text_ids)
        lines = sampled.answers if same else ()
        with self._probe(session) as server:
            if not server.scores:
                raise MeasureError(f"neither {kept.header.engine} nor {other.engine} can score a prompt")
            with closing(ReferenceFile(scores, replace(other, model=server.model, text_ids=()))) as file:
                scored = self._score_answers(server, lines, file)
        why = {} if same else dict.fromkeys(("kl", "noise_floor"), _VOCABULARY)
        return self._judge(
            QualityEvidence(
                reference=kept.header.model,
                candidate=other.model,
                answers=[line.answer for line in lines],
                own=[line.own for line in lines],
                other=[scored.get(line.answer) for line in lines],
                candidate_sampled=True,
                reference_text=kept.segments,
                why={**why, "text": f"{other.engine} ({other.model}) scores no text"},
            ),
            kept,
            other.engine,
        )

    @contextmanager
    def _probe(self, session: Session) -> Iterator[ProbabilityServer]:
        """Find out what a session's server reports, and remove the progress that is shown in the block.

        A signal ends the block where it next waits for the server, and raises Stopped; a second one at once.
        """
        stop = StopRequest()

        def react(number: int) -> None:
            if stop.pending:
                signals.stop(number)
            stop.request_stop(number)

        access = replace(session.access, loop=ControlLoop(stop))
        with signals.SIGNALS.catch(react):
            try:
                with self.display.waiting(f"trying {access.shown_url}"):
                    server = probe_server(ProbabilityServer.of_session(replace(session, access=access)))
                yield server
            finally:
                self.display.close()
                stop.poll()

    def _judge(self, evidence: QualityEvidence, kept: ReferenceContents, engine: str) -> Quality:
        """Compute a candidate's figures, with the settings and digests that they are of."""
        engines = {"reference_engine": kept.header.engine, "candidate_engine": engine}
        digests = {"text": self.plan.text_digest, "reference": kept.digest}
        return judge_evidence(
            replace(evidence, settings={**self.plan.list_settings(), **engines}, digests=digests)
        )

    def _score_text(
        self, server: ProbabilityServer, text: TokenizedText, file: ReferenceFile
    ) -> list[TextSegment]:
        """Score the segments of the text that a file lacks, append them to it, and return all."""
        segments = list(file.contents.segments) if file.contents is not None else []
        begin_ns, total = clock.now_ns(), len(text.segments)
        while len(segments) < total:  # a few at a time, in order: what is appended stays
            next_ones = slice(len(segments), len(segments) + server.prompts_at_once)
            few = TokenizedText(text.segments[next_ones], text.scored_bytes[next_ones])
            more = score_text(server, few, lambda done: None)
            file.append(map(SegmentLine, more))
            segments += more
            what = f"text by {server.model}"
            self.display.draw(QualityProgress(what, len(segments), total, "segment", None, begin_ns))
        return segments

    def _score_answers(
        self, server: ProbabilityServer, lines: Sequence[AnswerLine], file: ReferenceFile
    ) -> dict[SampledAnswer, TokenScores]:
        """Score the answers without scores in a file, append these to it, and return all by the answer."""
        kept = file.contents.answers if file.contents is not None else ()
        scored = {line.answer: line.own for line in kept if line.own is not None}
        left = [line for line in lines if line.answer not in scored]
        begin_ns = clock.now_ns()

        def keep(batch: Sequence[AnswerLine], scores: Sequence[TokenScores | None]) -> None:
            found = {line.answer: one for line, one in zip(batch, scores, strict=True) if one is not None}
            file.append(AnswerLine(answer, own) for answer, own in found.items())
            scored.update(found)
            kl = estimate_divergence([*scored], [*scored.values()])
            what = f"answers by {server.model}"
            self.display.draw(QualityProgress(what, len(scored), len(lines), "answer", kl, begin_ns))

        everything = replace(self.plan, tokens=MOST_TOKENS)  # the file's answers are what is wanted
        score_answers(server, left, AnswerMeasure(everything, keep))
        return scored
