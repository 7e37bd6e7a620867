"""Gate states: whether the machine was in one state for both sides, so that it is not what differs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from loadgen.facts.machine_state import MEMORY_BANDWIDTH, Difference, list_setting_differences
from loadgen.study.compare.machine_states import MODE, list_run_differences
from loadgen.study.run_summary import Reported

# Of pairs that were measured in turn: what differs the same way in as many sets the sides apart; what differs
# now and then, now this way and now that, is spread, which the pairs show.
MOSTLY = 0.8
ALLOWING = "--allow-other-state"
_TELLING = 3  # runs a side, whose spread shows whether a condition is the side's
_NUMBER = re.compile(r"-?[\d,]+(?:\.\d+)?")


def list_unequal_states(new: Sequence[Reported], base: Sequence[Reported], in_turn: bool) -> list[str]:
    """List by what the machine's state sets the sides apart, each new run held against the base's next to it.

    Of runs that were not measured `in_turn`, any difference does; of those that were, a setting (a clock
    limit, a power cap, firmware), and a condition (heat, other processes, memory bandwidth) that differs the
    same way in four of five pairs. Memory bandwidth never does where it differs on one side as well, or has
    too few runs to show that: on a shared machine it varies by half from run to run.
    """
    pairs = _match(new, base)
    apart = [difference for pair in pairs for difference in _list_differences(*pair)]
    if min(len(new), len(base)) < _TELLING or any(map(_varies, (new, base))):
        apart = [each for each in apart if each[0] != MEMORY_BANDWIDTH]
    if in_turn:
        settings = {what for pair in pairs for what, *_ in _list_settings(*pair)}
        counts = Counter(map(_direct, apart))
        most = MOSTLY * len(pairs)
        apart = [each for each in apart if each[0] in settings or counts[_direct(each)] >= most]
    return _describe(apart)


def list_passing_states(new: Sequence[Reported], base: Sequence[Reported]) -> list[str]:
    """List by what the machine's state differs in any pair, and in how many pairs each does."""
    pairs = _match(new, base)
    apart = [difference for pair in pairs for difference in _list_differences(*pair)]
    counts = Counter(what for what, *_ in apart)
    return [f"{what} differs in {count} of {len(pairs)} pairs" for what, count in counts.items()]


def _varies(runs: Sequence[Reported]) -> bool:
    """Whether the memory bandwidth differs between runs of one side."""
    return any(what == MEMORY_BANDWIDTH for run in runs for what, *_ in _list_differences(run, runs[0]))


def _match(new: Sequence[Reported], base: Sequence[Reported]) -> list[tuple[Reported, Reported]]:
    """Match each new run with the base's at its place, or with the last."""
    return [(run, base[min(at, len(base) - 1)]) for at, run in enumerate(new)]


def _list_differences(run: Reported, base: Reported) -> list[Difference]:
    """List the differences of two runs' states but for the power mode, which has a rule of its own.

    [] of two machines, which another rule refuses.
    """
    if run.machine != base.machine:
        return []
    return [difference for difference in list_run_differences(run, base) if difference[0] != MODE]


def _list_settings(run: Reported, base: Reported) -> list[Difference]:
    """List those differences before two runs that someone has set; [] where a state is not recorded."""
    states = [None if each.facts is None else each.facts.state_before for each in (run, base)]
    own, other = states
    return [] if own is None or other is None else list_setting_differences(own, other)


def _direct(difference: Difference) -> tuple[str, object]:
    """Return what differs and which way: whether the new side has more, or both values if they are words."""
    what, own, other = difference
    values = [match[0].replace(",", "") for text in (own, other) if (match := _NUMBER.match(text))]
    return what, float(values[0]) > float(values[1]) if len(values) == 2 else (own, other)


def _describe(apart: Sequence[Difference]) -> list[str]:
    """Describe each thing that differs once, by its first two values."""
    first: dict[str, Difference] = {}
    for difference in apart:
        first.setdefault(difference[0], difference)
    said = [f"state of the machine: {what} {own}, baseline {other}" for what, own, other in first.values()]
    return [f"{said[0]} ({ALLOWING} compares all the same)", *said[1:]] if said else []
