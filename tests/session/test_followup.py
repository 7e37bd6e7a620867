"""What is learned of a run after its last request."""

from __future__ import annotations

import pytest

from builders import made_cases as made
from loadgen.roofline.flags import Flags
from loadgen.session import followup


@pytest.mark.parametrize(
    ("given", "hardware", "count"),
    [(0, "4xh100", 4), (0, "l4", 1), (2, "4xh100", 2), (0, None, 0)],
)
def test_the_hardware_that_is_named_says_how_many_gpus(given: int, hardware: str | None, count: int) -> None:
    facts = made.run(gpus=given).facts
    assert facts.learned(followup.bounded(facts, Flags(hardware=hardware))).gpus == count
