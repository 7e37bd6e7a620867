"""TCP losses: counts of struct tcp_info, of each response, and none where the kernel has none."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from builders.loops import loop_over
from fakes.scripted_server import drive, job_of, records, stream
from fakes.virtual_network import VirtualServer, VirtualSocket
from loadgen.records.record import UNKNOWN
from loadgen.transport.network import UNKNOWN_LOSSES, Losses, read_losses


def info(out_of_order: int, retransmitted: int, size: int = 240, twice: int = 0) -> bytes:
    """struct tcp_info of Linux, as far as a kernel fills it."""
    whole = bytearray(240)
    struct.pack_into("=I", whole, 100, retransmitted)
    struct.pack_into("=I", whole, 216, twice)
    struct.pack_into("=I", whole, 224, out_of_order)
    return bytes(whole[:size])


class Kernel:
    def __init__(self, found: bytes | OSError) -> None:
        self.found = found

    def getsockopt(self, level: int, option: int, length: int, /) -> bytes:
        if isinstance(self.found, OSError):
            raise self.found
        return self.found[:length]


@loop_over(
    ("found", "losses"),
    [
        (info(7, 2), Losses(7, 2)),
        (info(7, 2, size=232), Losses(7, 2)),
        (info(7, 2, size=224), Losses(UNKNOWN, 2)),  # before Linux 5.4
        (info(7, 2, size=104), Losses(UNKNOWN, 2)),
        (info(7, 5, twice=3), Losses(7, 2)),  # the receiver had three of them already
        (info(7, 5, twice=5), Losses(7, 0)),  # probes alone, as of a server that reads slowly
        (info(7, 5, twice=6), Losses(7, 0)),  # one was doubled on the way
        (info(7, 5, twice=3, size=216), Losses(UNKNOWN, 5)),
        (info(7, 2, size=100), UNKNOWN_LOSSES),
        (b"", UNKNOWN_LOSSES),
        (bytes(148) + struct.pack("=I", 35), Losses(UNKNOWN, 0, 35_000)),
        (bytes(148) + struct.pack("=I", 35) + bytes(100), Losses(0, 0, 35_000)),
        (bytes(148) + b"\xff" * 4, Losses(UNKNOWN, 0)),  # no acknowledgement yet
        (bytes(148), Losses(UNKNOWN, 0)),  # before Linux 4.6
        (OSError(9, "Bad file descriptor"), UNKNOWN_LOSSES),
    ],
)
def test_a_kernel_reports_what_it_counts(found: bytes | OSError, losses: Losses) -> None:
    assert read_losses(Kernel(found)) == losses  # type: ignore[arg-type]


@pytest.mark.parametrize("transport", ["wire", "ring"])
def test_each_answer_has_its_own_count(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([3, 3, 8])  # of the one connection, at the end of each answer
    asked = VirtualSocket.getsockopt

    def answered(self: VirtualSocket, level: int, option: int, *length: int) -> Any:
        if not length:
            return asked(self, level, option)
        return info(next(counts), 0) if length[0] > 224 else b""

    monkeypatch.setattr(VirtualSocket, "getsockopt", answered)
    server = VirtualServer(lambda _: stream(5, 0.002))
    found = records(drive(job_of(server.target(), 3, 1), transport, server))
    assert [record.out_of_order for record in found] == [3, 0, 5]
