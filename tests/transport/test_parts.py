"""A transport that sends a part of a plan: whose indices, whose slots, and from which instant."""

from __future__ import annotations

import numpy as np
import pytest

from fakes.scripted_server import TRANSPORTS, drive, job_of, stream
from fakes.virtual_network import VirtualServer
from loadgen.settings.shard_settings import Share
from loadgen.transport.sending.job import At, Listed

MS = 1_000_000
SECOND_OF_THREE = Share(1, 3)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_open_loop_sends_its_indices_at_their_times(transport: str) -> None:
    server = VirtualServer(lambda _: stream(2, 0.001))
    begin_ns = server.now_ns() + 70 * MS
    offsets_ns = np.arange(9, dtype=np.int64) * 10 * MS
    indices = SECOND_OF_THREE.list_indices(9)
    job = job_of(
        server.target(),
        0,
        order=Listed(indices),
        offsets_ns=offsets_ns[indices],
        rate_per_s=33.0,
        share=SECOND_OF_THREE,
        start=At(begin_ns),
    )
    driven = drive(job, transport, server)
    assert [capture.index for capture in driven.captures] == [1, 4, 7]
    assert driven.health.started_ns == begin_ns
    assert [capture.intended_ns - begin_ns for capture in driven.captures] == [10 * MS, 40 * MS, 70 * MS]
    assert all(0 <= capture.sent_ns - capture.intended_ns < 2 * MS for capture in driven.captures)
    assert {capture.slot % 3 for capture in driven.captures} == {1}
