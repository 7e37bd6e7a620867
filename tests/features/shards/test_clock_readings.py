"""Clock readings: by the wall clock, and by round trips to a clock of another process."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from builders.loops import loop_over
from loadgen.features.shards import clock_readings
from loadgen.features.shards.clock_readings import RoundTrips, boot_id, reading
from loadgen.verdict.run_facts import ClockReading


class Clocks:
    """A machine's two clocks, which stand still unless moved."""

    def __init__(self, mono_ns: int = 1_000_000, ahead_ns: int = 0) -> None:
        self.mono_ns, self.ahead_ns = mono_ns, ahead_ns

    def now_ns(self) -> int:
        return self.mono_ns

    def wall_ns(self) -> int:
        return self.mono_ns + self.ahead_ns


def test_a_reading_has_the_wall_clock_and_its_error() -> None:
    found = reading(Clocks(ahead_ns=7_000), lambda: "boot", lambda: 5)
    assert found == ClockReading(boot="boot", offset_ns=7_000, error_ns=5, reference="wall clock")


def test_this_machine_has_a_reading() -> None:
    found = reading()
    assert found.boot == boot_id() != ""
    assert found.error_ns >= clock_readings.UNKNOWN_NS


@loop_over(
    ("boot", "namespace", "expected"),
    [
        ("a-b\n", None, "a-b"),
        ("a-b\n", "monotonic           0         0\nboottime            0         0\n", "a-b"),
        ("a-b\n", "monotonic       86400         5\nboottime            0         0\n", "a-b 86400 5"),
        ("a-b\n", "monotonic          -2         0\n", "a-b -2 0"),
        ("a-b\n", "", "a-b"),
        (None, None, ""),
    ],
)
def test_a_time_namespace_has_a_clock_of_its_own(
    tmp_path: Path, boot: str | None, namespace: str | None, expected: str
) -> None:
    for name, text in (("boot", boot), ("namespace", namespace)):
        if text is not None:
            (tmp_path / name).write_text(text)
    assert boot_id(tmp_path / "boot", tmp_path / "namespace") == expected


@given(
    st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), min_size=1, max_size=12),
    st.integers(-(10**15), 10**15),
)
def test_round_trips_bound_the_offset(ways_ns: list[tuple[int, int]], ahead_ns: int) -> None:
    clocks, trips = Clocks(), iter(ways_ns)

    def ask() -> int:
        there_ns, back_ns = next(trips)
        clocks.mono_ns += there_ns
        theirs_ns = clocks.mono_ns + ahead_ns
        clocks.mono_ns += back_ns
        return theirs_ns

    found = RoundTrips(ask, clocks).reading("boot", "the driver's clock", len(ways_ns))
    assert abs(found.offset_ns + ahead_ns) <= found.error_ns
    least_ns = min(there for there, _ in ways_ns) + min(back for _, back in ways_ns)
    assert found.error_ns == (least_ns + 1) // 2
    assert (found.boot, found.reference) == ("boot", "the driver's clock")
