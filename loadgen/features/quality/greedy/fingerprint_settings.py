"""Fingerprint settings: whether a few greedy prompts are sent after a run, and that step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from loadgen.settings.setting import RUN, Makes, OptionRows, setting

if TYPE_CHECKING:
    from loadgen.facts.run_facts import Facts
    from loadgen.plan.plan import Plan
    from loadgen.run.command.progress import Display
    from loadgen.run.extension import Step
    from loadgen.run.firing import Outcome
    from loadgen.run.session import Session


# fmt: off
class FingerprintOptions(OptionRows, frozen=True):
    """The setting of the greedy prompts."""

    fingerprint: bool = setting(Makes.NOTHING, False, "record the answers to a few greedy prompts, to see "
        "whether a fast checkpoint still answers", group=RUN, rank=2, action="store_true",
        campaign="applies to the whole campaign: write it above the tables")
# fmt: on


OPTIONS = (FingerprintOptions,)


def list_steps(
    session: Session, made: Plan, outcome: Outcome, display: Display
) -> Iterator[tuple[str, Step]]:
    """Yield the step that adds the answers to greedy prompts to the facts, if --fingerprint is given.

    Of several shards only the first has it.
    """
    if not session.options.fingerprint or session.options.share.number:
        return
    from loadgen.base.structs import replace
    from loadgen.features.quality.greedy import greedy_prompts

    def add_fingerprint(known: Facts) -> Facts:
        answers = greedy_prompts.take_fingerprint(session, made, outcome, display)
        return replace(known, fingerprint=answers)

    yield "the fingerprint", add_fingerprint
