"""Machine states: whether runs that are compared were measured on a machine in one state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from loadgen.base.errors import MeasureError
from loadgen.base.rule import Evidence, join_evidence
from loadgen.facts.machine_state import Difference, list_setting_differences, list_state_differences
from loadgen.study.run_summary import Reported

Rows = Sequence[tuple[str, Sequence[Reported]]]  # of one table: each row's name and runs, the baseline first

MODE = "power mode"  # has a rule of its own, which refuses the pair


def explain_state_differences(run: Reported, baseline: Reported) -> Evidence | None:
    """Write by what the machine's state of a run differs from a baseline run's, with both values.

    None if it does not, where one is not recorded, and of two machines: another rule refuses those.
    """
    if run.machine != baseline.machine:
        return None
    apart = list_run_differences(run, baseline)
    return join_evidence(f"{what} {own}, baseline {other}" for what, own, other in apart if what != MODE)


def list_run_differences(run: Reported, baseline: Reported) -> list[Difference]:
    """List the differences before two runs, then settings that differ only at their ends; [] if unknown."""
    if run.facts is None or baseline.facts is None:
        return []
    before, other_before = run.facts.state_before, baseline.facts.state_before
    after, other_after = run.facts.state_after, baseline.facts.state_after
    apart = list_state_differences(before, other_before) if before and other_before else []
    late = list_setting_differences(after, other_after) if after and other_after else []
    known = {what for what, *_ in apart}
    return apart + [(f"{what} at the end", own, other) for what, own, other in late if what not in known]


def knows_state(run: Reported) -> bool:
    """Whether the machine's state before a run is recorded."""
    return run.facts is not None and run.facts.state_before is not None


def check_equal_states(tables: Iterable[Rows]) -> None:
    """Raise MeasureError if runs of one table were not measured on a machine in one state.

    It names for each row the differences of one run, with both values; a state that is not recorded counts
    as one.
    """
    unequal = dict.fromkeys(sentence for rows in tables for sentence in _list_unequal(rows))
    if unequal:
        raise MeasureError(
            f"not measured in one state: {next(iter(unequal))}; bring the machine into one state and measure "
            "again, or compare without --require-equal-state",
            *(f"\n  {sentence}" for sentence in list(unequal)[1:]),
        )


def _list_unequal(rows: Rows) -> Iterator[str]:
    """Yield by what the runs of each row differ from the first run of the table, once a row."""
    runs = [(name, run) for name, own in rows for run in own]
    found = set[str]()
    for name, run in runs:
        first_name, first = runs[0]
        if name in found:
            continue
        recorded = knows_state(run)
        apart = list_run_differences(run, first) if recorded else []
        named = ", ".join(f"{what} {own} (first run of {first_name}: {other})" for what, own, other in apart)
        if sentence := named if recorded else "the state of its machine is not recorded":
            found.add(name)
            yield f"{name}: {sentence}"
