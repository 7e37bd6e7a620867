"""What is learned late of a run are facts of it, and facts of earlier versions are read as of this one."""

from __future__ import annotations

from typing import Any

import pytest

from builders.made_cases import run
from loadgen.verdict.run_facts import Facts
from loadgen.verdict.run_metadata import LateFacts, StartFacts


def test_what_is_learned_late_has_the_types_of_the_facts() -> None:
    late = {name: reference.__forward_arg__ for name, reference in LateFacts.__annotations__.items()}
    typed = {**StartFacts.__annotations__, **Facts.__annotations__}
    assert late == {name: typed[name] for name in late}


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({}, False),
        ({"notes": ["ignore_eos is not sent: SGLang refuses it, so answers may be shorter"]}, True),
        ({"notes": ["a note"], "ignore_eos_refused": True}, True),
        ({"notes": ["ignore_eos is not sent: refused"], "ignore_eos_refused": False}, False),
    ],
    ids=["new", "earlier, by its note", "new and refused", "the field before the note"],
)
def test_a_refused_ignore_eos_is_read_from_the_notes_of_earlier_runs(
    changes: dict[str, Any], refused: bool
) -> None:
    stored = run().facts.model_dump(mode="json")
    del stored["ignore_eos_refused"]
    facts = Facts.stored({**stored, **changes, "of_another_version": 1})
    assert (facts.ignore_eos_refused, facts.profile.ignore_eos) == (refused, True)
