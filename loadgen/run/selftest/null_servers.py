"""Null servers of the self-test: processes that log when they really wrote each message."""

from __future__ import annotations

import select
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from loadgen.base.errors import MeasureError, UsageError
from loadgen.verdict.calibration import Sent
from loadgen_servers.process.embedded import NULL, Embedded, EngineFailed


@dataclass
class Null:
    """A running null server."""

    base_url: str
    log: Path
    process: Embedded

    def sent(self, prefix: str) -> dict[int, Sent]:
        """What was sent to the requests of a prefix, by plan index; ends the server."""
        self.process.stop()
        rows = (msgspec.json.decode(line, type=Sent) for line in self.log.read_bytes().splitlines())
        return {int(row.request_id[len(prefix) :]): row for row in rows if row.request_id.startswith(prefix)}


@contextmanager
def null_server(ttft_ms: float, interval_ms: float, *shape: str) -> Iterator[Null]:
    """A null server of our own; raises UsageError or MeasureError where it cannot be started."""
    if not hasattr(select, "epoll"):
        raise UsageError("the self-test needs Linux: its null server waits on epoll")
    with tempfile.TemporaryDirectory(prefix="loadgen-selftest-") as name:
        log = Path(name) / "log.jsonl"
        pace = ["--ttft-ms", f"{ttft_ms:g}", "--interval-ms", f"{interval_ms:g}", "--log", str(log)]
        with Embedded([*pace, *shape], NULL) as process:
            try:
                listening = process.start()
            except EngineFailed as error:
                raise MeasureError(f"the null server did not start: {error}") from None
            yield Null(listening.base_url, log, process)


@contextmanager
def null_servers(count: int, ttft_ms: float, interval_ms: float, *shape: str) -> Iterator[list[Null]]:
    """As many null servers of our own; raises UsageError or MeasureError where one cannot be started."""
    with ExitStack() as stack:
        yield [stack.enter_context(null_server(ttft_ms, interval_ms, *shape)) for _ in range(count)]
