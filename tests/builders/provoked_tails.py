"""Runs whose long waits have a cause: other requests' prompts, or the network: made and in virtual time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from builders import made_attributions as made
from builders.made_cases import run
from builders.provocations import Provocation
from fakes.scripted_server import Answer, api, stream
from fakes.virtual_network import VirtualServer
from fakes.virtual_servers import MS, engine_server
from loadgen.features.attribution.attribution import Attribution, attribute_run
from loadgen.records.record import RETRANSMISSION, Records
from loadgen.verdict.evidence import RunEvidence

LONG = Path(__file__).parents[1] / "data" / "injections" / "long_prompts.json"  # one prompt in ten
TOKENS, STEP_MS, RESENT_MS = 10, 20, 100


def tailed(found: Attribution) -> RunEvidence:
    """A run whose waits were divided like that."""
    return replace(run(), parts={attribute_run: found})


# The run, and the words that its evidence must have.
OF_TAILS: dict[str, tuple[RunEvidence, str]] = {
    "network-in-tail": (
        tailed(made.NETWORK),
        "91 % of the time beyond P99 ITL is the network's (retransmission 89 %, path delay 2 %)",
    ),
    "others-prefill-stalls": (
        tailed(made.BUSY),
        "61 % of the time beyond P99 ITL is other requests' prefill",
    ),
}


def resending() -> VirtualServer:
    """A server of which one answer in sixteen has a message that comes late."""
    number = count(1)

    def answer(_: Any) -> Answer:
        slow, sent = next(number) % 16 == 0, stream(TOKENS, STEP_MS / 1e3)
        pieces = list(sent.pieces)
        at = [place for place, piece in enumerate(pieces) if piece == STEP_MS / 1e3][TOKENS // 2]
        pieces[at] = (STEP_MS + RESENT_MS * slow) / 1e3
        return Answer(pieces)

    return VirtualServer(api(answer))


def late_segments(patch: pytest.MonkeyPatch, server: VirtualServer) -> None:
    """Messages that come late were sent in time, as their segments' own timestamps show."""
    join = Records.join

    def joined(parts: Iterable[Records], spill: Path | None = None) -> Records:
        records = join(parts, spill)
        late = np.diff(records.arrival_ns, prepend=records.arrival_ns[:1]) > RESENT_MS * MS
        late[records.start[:-1]] = False
        delay_us = np.where(late, RESENT_MS * 1000, 0).astype(np.int32)
        cause = np.where(late, RETRANSMISSION, 0).astype(np.int8)
        return msgspec.structs.replace(records, delay_us=delay_us, delay_cause=cause)

    patch.setattr(Records, "join", joined)


FORTY = "--random-input-len 64 --random-output-len 40 --num-prompts 80 --max-concurrency 8"
TAILED = {
    "a network that loses a segment now and then": Provocation(
        resending,
        f"--random-input-len 5 --random-output-len {TOKENS} --num-prompts 80 --max-concurrency 4",
        {"network-in-tail"},
        play=late_segments,
    ),
    "prompts that stop all streams": Provocation(
        lambda: engine_server("--inject", str(LONG)), FORTY, {"others-prefill-stalls"}
    ),
}
