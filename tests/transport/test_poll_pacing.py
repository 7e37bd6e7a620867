"""How long the epoll is left alone between two looks at many streams."""

from __future__ import annotations

import pytest

from builders.loops import loop_over
from loadgen.transport.epoll_transport import PollPacing

SECOND_NS = 1_000_000_000


@loop_over(
    ("streams", "reads_per_s", "rest_s"),
    [
        (1024, 102_400, 0.0002),  # 10 ms between a stream's reads: a fiftieth
        (512, 150_000, 512 / 150_000 / 50),
        (1024, 51_200, 0.0002),  # never longer, however slow they are
        (400, 160_000, 0.00005),
        (400, 161_000, 0.0),  # shorter than the kernel's slack
        (399, 100_000, 0.0),  # too few to be worth it
        (8, 1_000, 0.0),
        (1024, 0, 0.0),  # all of them wait for their first token
        (0, 0, 0.0),
    ],
)
def test_a_rest_is_a_small_share_of_the_gap_between_a_streams_reads(
    streams: int, reads_per_s: int, rest_s: float
) -> None:
    rest = PollPacing()
    rest.learn(streams, 5, 7 * SECOND_NS)
    rest.learn(streams, 5 + reads_per_s // 10, 7 * SECOND_NS + SECOND_NS // 10)
    assert rest.seconds == pytest.approx(rest_s, rel=1e-9)


def test_without_the_kernels_stamps_there_is_no_rest() -> None:
    rest = PollPacing()
    rest.learn(1024, 0, SECOND_NS)
    rest.learn(1024, 10_000, 2 * SECOND_NS)
    assert rest.seconds > 0
    rest.forbidden = True
    rest.learn(1024, 20_000, 3 * SECOND_NS)
    assert rest.seconds == 0
