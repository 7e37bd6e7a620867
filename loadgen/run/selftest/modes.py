"""Modes: the things that servers do, each to be seen exactly as it was sent."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from loadgen.run.selftest.load import SelftestClient, SelftestLoad, planned
from loadgen.run.selftest.null_servers import null_server
from loadgen.run.selftest.trial import fire
from loadgen.verdict.calibration import Seen, compare


class Mode(msgspec.Struct, frozen=True):
    """One thing that servers do, and the null server's flags for it."""

    words: str
    shape: tuple[str, ...] = ()
    chat: bool = False


MODES = (
    Mode("a token a message"),
    Mode("a token a message, chat", chat=True),
    Mode("4 tokens a message", ("--tokens-per-message", "4")),
    Mode("4 messages a write", ("--messages-per-write", "4")),
    Mode("a message in 3 writes", ("--pieces", "3")),
    Mode("messages with a role alone", ("--extra", "role"), chat=True),
    Mode("messages with usage alone", ("--extra", "usage")),
    Mode("comments (pings)", ("--extra", "ping")),
    Mode("empty texts", ("--extra", "empty")),
    Mode("a stall of 100 ms", ("--stall-ms", "100")),
)


def examine(mode: Mode, transports: Sequence[str]) -> dict[str, str]:
    """What is wrong with what each transport saw of a mode, `ok` where nothing is; raises MeasureError."""
    load = SelftestLoad(streams=2, interval_ms=2.0, chat=mode.chat)
    requests, tokens = 2 * load.streams, 18
    with null_server(load.interval_ms, load.interval_ms, *mode.shape) as null:
        records = {
            transport: fire(
                planned(load, requests, tokens),
                SelftestClient(transport),
                [null.base_url],
                f"{transport}-",
            ).records
            for transport in transports
        }
        return {
            transport: fault(compare(received, null.sent(f"{transport}-")), requests * tokens)
            for transport, received in records.items()
        }


def fault(seen: Seen, tokens: int) -> str:
    """What is wrong with a run that asked for `tokens` tokens; `ok` where nothing is."""
    if seen.failed:
        return f"{seen.failed} of {seen.requests} failed, the first with {seen.first_error}"
    if seen.unlike:
        return f"{seen.unlike} of {seen.requests} answers with more or fewer messages than were sent"
    return "ok" if seen.tokens == tokens else f"{seen.tokens} tokens of {tokens}"


def examined(transports: Sequence[str]) -> tuple[list[str], bool]:
    """The table of modes, and whether all are well; raises MeasureError."""
    lines, faults = [f"{'what the server sends':<28}" + "".join(f"{name:>10}" for name in transports)], []
    for mode in MODES:
        outcomes = examine(mode, transports)
        cells = (f"{'ok' if outcome == 'ok' else 'wrong':>10}" for outcome in outcomes.values())
        lines.append(f"  {mode.words:<26}" + "".join(cells))
        faults += [f"{mode.words}, {name}: {wrong}" for name, wrong in outcomes.items() if wrong != "ok"]
    return lines + faults, not faults
