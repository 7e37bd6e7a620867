"""Quality servers: what a campaign measures of an arm's quality, kept in files that it goes on with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
from msgspec.structs import replace

from loadgen.base import signals
from loadgen.base.errors import MeasureError
from loadgen.base.parsing import MOST_TOKENS
from loadgen.base.signals import StopRequest
from loadgen.features.quality.probability_server import ProbabilityServer, probe_server
from loadgen.features.quality.quality_measure import AnswerMeasure, score_answers
from loadgen.features.quality.quality_record import Quality
from loadgen.features.quality.quality_run import QualityRun, record_reference
from loadgen.features.quality.quality_text import QualityPlan, read_text
from loadgen.features.quality.reference_file import ReferenceFile, read_reference
from loadgen.run.command.progress import Display
from loadgen.run.session import Session
from loadgen.server.exchange import ControlLoop
from loadgen.study.series.campaign.arm_scores import (
    explain_vocabularies,
    judge_reference,
    judge_scored,
    judge_scored_back,
)
from loadgen.study.series.campaign.campaign_file import QualityTable


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
            record_reference(server, self.plan, reference, self.display.draw)
            kept = read_reference(reference)
        return judge_reference(kept)

    def score_reference(self, session: Session, reference: Path, scores: Path) -> Quality | None:
        """Have a candidate score the reference's file, and return its quality.

        None if it cannot score; then it has sampled, into `scores`.
        """
        with self._probe(session) as server:
            if not server.scores:
                record_reference(server, self.plan, scores, self.display.draw)
                return None
            QualityRun(
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
        measure = AnswerMeasure(
            replace(self.plan, tokens=sampled.tokens), f"answers of {other.model}", self.display.draw
        )
        with self._probe(session) as server:
            if not server.scores:
                raise MeasureError(f"neither {kept.header.engine} nor {other.engine} can score a prompt")
            with closing(ReferenceFile(scores, replace(other, model=server.model, text_ids=()))) as file:
                score_answers(server, () if differ else sampled.answers, measure, file)
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
