"""Status lines: a run under way, or a wait, as one line with the share that is done and the time left."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from loadgen.base import clock
from loadgen.base.text import WIDTH
from loadgen.run.command.progress import Progress, estimate_ttft_ms

_WINDOW_NS = 3_000_000_000
_MOMENT_S = 0.1  # no time has passed
_WIDE = 100  # columns from which there is room for more figures
_TELLING = 0.05  # the share of all tokens before which a run is mostly prefill, and slower than it will be
_ENOUGH = 10  # answers whose length shows that of the others


class RunStatus(msgspec.Struct):
    """A run under way as a display shows it, from its progress."""

    run: Progress
    _recent: list[tuple[int, int]] = []  # (ns, reads) of the last seconds

    @property
    def elapsed_s(self) -> float:
        return (clock.now_ns() - self.run.begin_ns) / 1e9

    @property
    def tokens_so_far(self) -> float:
        """Tokens of decoded answers, plus the mean of a decoded read (or 1) for each read not decoded yet."""
        a_read = self.run.tokens / self.run.reads if self.run.reads and self.run.tokens else 1.0
        return self.run.tokens + max(self.run.counters.reads - self.run.reads, 0) * a_read

    @property
    def _token_share(self) -> float | None:
        """The share of all expected tokens that has arrived, 0 to 1; None while it is unknown.

        Of each request the planned tokens are expected, or, from ten on, the mean of those answered. Requests
        end in waves where many are sent at once; tokens come evenly.
        """
        answered = self.run.ended - self.run.failed - self.run.cancelled
        if self.run.total is None or not self.run.total or not self.tokens_so_far:
            return None
        if answered >= _ENOUGH or (answered and not self.run.planned_tokens):
            a_request = self.run.tokens / answered
        else:
            a_request = self.run.planned_tokens / self.run.total
        expected = self.run.tokens + max(self.run.total - self.run.ended, 0) * a_request
        most = self.run.tokens + max(self.run.counters.sent - self.run.ended, 0) * a_request
        return min(self.tokens_so_far, most) / expected if expected else None

    @property
    def left_s(self) -> float | None:
        """Estimated seconds left, the least of --duration's and the pace's so far; None while unknown.

        The pace is of tokens, once 5 % of them or a request are there, else of ended requests; until the last
        request of a trace is due, the time to that counts instead.
        """
        ended = max(self.run.counters.ended, self.run.ended)
        left = [] if self.run.duration_s is None else [max(self.run.duration_s - self.elapsed_s, 0.0)]
        if self.run.schedule_s is not None and self.elapsed_s < self.run.schedule_s:
            left.append(self.run.schedule_s - self.elapsed_s)
        elif (share := self._token_share) and (self.run.ended or share > _TELLING):
            left.append(self.elapsed_s * (1 / share - 1))
        elif self.run.total is not None and ended:
            left.append(self.elapsed_s / ended * (self.run.total - ended))
        return min(left, default=None)

    @property
    def share(self) -> float:
        """The share of the run that is done, 0 to 1: of its tokens, else requests, else time, else 0."""
        if (share := self._token_share) is not None:
            return share
        if self.run.total is not None:
            return self.run.ended / max(self.run.total, 1)
        return min(self.elapsed_s / self.run.duration_s, 1.0) if self.run.duration_s else 0.0

    def measure_token_rate_per_s(self) -> float | None:
        """Note the reads so far; return tokens/s over 3 s (reads × tokens per read), None at first."""
        now_ns, reads = clock.now_ns(), self.run.counters.reads
        self._recent = [(at, n) for at, n in self._recent if now_ns - at < _WINDOW_NS] + [(now_ns, reads)]
        first_ns, first = self._recent[0]
        if not self.run.reads or now_ns == first_ns:
            return None
        return (reads - first) * 1e9 / (now_ns - first_ns) * self.run.tokens / self.run.reads

    def line(self, columns: int = WIDTH) -> str:
        """Return the progress as one line, not cut to `columns`; from 100 columns on it has more figures."""
        of = "" if self.run.total is None else f"/{self.run.total}"
        # Sent requests are counted at once, ended ones ten times a second.
        running = max(self.run.counters.sent - max(self.run.counters.ended, self.run.ended), 0)
        if self.run.max_concurrency is not None:
            running = min(running, self.run.max_concurrency)
        parts = [f"{self.run.title}: {self.run.ended}{of} done", f"{running} running"]
        if self.run.failed:
            parts.append(f"{self.run.failed} failed")
        parts += self._describe_rest(running)  # before what a narrow terminal cuts off
        if (rate := self.measure_token_rate_per_s()) is not None:
            parts.append(f"{rate:,.0f} tok/s")
        elif self.run.tokens and self.elapsed_s > 0:  # a log has a line too seldom for what came lately
            parts.append(f"{self.tokens_so_far / self.elapsed_s:,.0f} tok/s")
        elif self.run.counters.reads:
            parts.append(f"about {self.tokens_so_far:,.0f} tokens")
        if self.run.ttft_count:
            parts.append(f"TTFT {self.run.ttft_sum_ns / self.run.ttft_count / 1e6:.1f} ms")
        wide = columns >= _WIDE
        if wide and (p99_ms := estimate_ttft_ms(self.run.ttft_counts, 99)) is not None:
            parts.append(f"P99 {p99_ms:,.{0 if p99_ms >= 10 else 1}f} ms")
        if wide and (waiting := self.run.waiting()) is not None:
            parts.append(f"{waiting} queued")
        return " · ".join(parts)

    def _describe_rest(self, running: int) -> Iterator[str]:
        """Yield the first that holds: why the run ends, the wait for the last, the time left, or elapsed."""
        if self.run.ending:
            yield f"ending: {self.run.ending}"
        elif self.run.duration_s is not None and running and self.elapsed_s > self.run.duration_s:
            cut_s = None if self.run.cut_after_s is None else max(self.run.cut_after_s - self.elapsed_s, 0.0)
            limit = "" if cut_s is None else f", {_duration(cut_s)} at most"
            yield f"no more are sent: waiting for the last{limit}"
        elif (left_s := self.left_s) is not None:
            yield f"{_duration(left_s)} left"
        elif self.elapsed_s >= 1:
            yield _duration(self.elapsed_s)


class Wait(msgspec.Struct, frozen=True):
    """A wait to show: for what, since when, for how long at most, and its state."""

    what: str
    at_most_s: float | None
    begin_ns: int
    detail: Callable[[], str] = str

    @property
    def share(self) -> None:
        """None: the time it may take does not show how much is done."""

    def line(self, columns: int = WIDTH) -> str:
        """Return what is waited for, for how long so far and at most, and its state, as one line."""
        elapsed_s = (clock.now_ns() - self.begin_ns) / 1e9
        parts = [_duration(elapsed_s)] * (elapsed_s >= _MOMENT_S)
        parts += [f"at most {_duration(self.at_most_s)}"] if self.at_most_s else []
        return " · ".join(filter(None, (self.what, " of ".join(parts), self.detail())))


def _duration(seconds: float) -> str:
    """Format seconds as 12 s, or from a minute on as 1:05."""
    whole = int(seconds + 0.5)
    return f"{whole // 60}:{whole % 60:02d}" if whole >= 60 else f"{whole} s"
