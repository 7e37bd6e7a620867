"""Planned requests: their content by index, the turns of sessions, and which are cancelled on purpose."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.base.arrays import Int64
from loadgen.plan.random_stream import RandomStream
from loadgen.settings.load_settings import CancelPoint
from loadgen.wire.openai import Dialect

DIGESTED_PROMPTS = 64
UNKNOWN_LEN = -1  # tokens of a prompt that only the server counts, or of an answer without a limit


class Requests(Protocol):
    """The requests of one plan, whose content is made by index when needed.

    `input_lens` and `output_lens` are int64[requests], in tokens: the client's count of the prompt and the
    length that is asked for; UNKNOWN_LEN where there is none.
    """

    @property
    def format(self) -> str: ...
    @property
    def input_lens(self) -> Int64: ...
    @property
    def output_lens(self) -> Int64: ...
    def request(self, i: int, dialect: Dialect, model: str) -> dict[str, Any]:
        """Make the fields of request i, without those that all requests of the plan share.

        Some may be JSON already (msgspec.Raw).
        """
        ...

    def digest(self) -> str:
        """Return a hash that is equal for equal requests, in every process, on every machine."""
        ...


class TurnRequests(Requests, Protocol):
    """The requests of sessions, which can have the server's own answers as history."""

    def request_after(
        self, i: int, answers: Sequence[dict[str, Any]], dialect: Dialect, model: str
    ) -> dict[str, Any]:
        """Make the fields of request i with these answers in place of its history's first ones."""
        ...


@runtime_checkable
class MadeTurns(Protocol):
    """Generated conversations, whose texts are made by index when needed."""

    @property
    def output_lens(self) -> Int64: ...
    def system(self, session: int) -> str:
        """Return the system prompt of a session; "" if it has none."""
        ...

    def message(self, i: int) -> str:
        """Return the user's message of request i."""
        ...

    def answer(self, i: int) -> str:
        """Return the generated answer to request i, for the history of later turns."""
        ...


class PromptRequests:
    """Requests of a single prompt each; a subclass defines `prompt`."""

    __slots__ = ()
    format: str
    input_lens: Int64
    output_lens: Int64

    def prompt(self, i: int) -> list[int] | str:
        """Return the prompt of request i: token ids or text."""
        raise NotImplementedError

    def request(self, i: int, dialect: Dialect, model: str) -> dict[str, Any]:
        """Make the fields of request i; raises UsageError if the API cannot take such a prompt."""
        return dialect.make_request(model, self.prompt(i), int(self.output_lens[i]))

    def digest(self) -> str:
        """Return a hash of all lengths and of the first 64 prompts."""
        first = min(len(self.input_lens), DIGESTED_PROMPTS)
        prompts = (msgspec.json.encode(self.prompt(i)) for i in range(first))
        return fingerprint(self.format, (self.input_lens, self.output_lens), prompts)


def fingerprint(form: str, columns: Iterable[Int64], contents: Iterable[bytes]) -> str:
    """Hash a format's name, int64 columns, and the requests' contents, in this order."""
    hashed = hashlib.blake2b(form.encode(), digest_size=16)
    for column in columns:
        hashed.update(column.astype("<i8").tobytes())
    for content in contents:
        hashed.update(content)
    return hashed.hexdigest()


class Turns(msgspec.Struct, frozen=True):
    """Which requests are the turns of which session, and the delay before each turn (ns).

    `begins` is int64[sessions + 1]: the plan index of each session's first turn, and then the number of
    requests: the turns of a session follow one another. `delays_ns` is int64[requests]: the pause before each
    turn, counted from the end of the answer before it; 0 of a first turn.
    """

    begins: Int64
    delays_ns: Int64

    def __len__(self) -> int:
        """How many sessions there are."""
        return len(self.begins) - 1

    @property
    def counts(self) -> Int64:
        """The number of turns of each session, int64[sessions]."""
        return np.diff(self.begins)

    def numbers(self) -> Int64:
        """Return the session's number of each request, int64[requests]."""
        return np.repeat(np.arange(len(self), dtype=np.int64), self.counts)

    def end(self, session: int) -> int:
        """Return the plan index after a session's last turn."""
        return int(self.begins[session + 1])

    def take_first(self, sessions: int) -> Turns:
        """Return the turns of the first `sessions` sessions."""
        begins = self.begins[: sessions + 1]
        return Turns(begins, self.delays_ns[: begins[-1]])

    def scale_delays(self, factor: float) -> Turns:
        """Return the turns with delays multiplied by a factor, rounded to nanoseconds."""
        return Turns(self.begins, np.rint(self.delays_ns * factor).astype(np.int64))


def make_turns(counts: Int64, delays_ns: Int64) -> Turns:
    """Make the turns of sessions, of which `counts`, int64[sessions], are at least 1 each."""
    return Turns(np.concatenate(([0], np.cumsum(counts))).astype(np.int64), delays_ns)


class Cancellations(msgspec.Struct, frozen=True):
    """The requests of a plan to cancel, bool[requests], and when each is cancelled."""

    chosen: NDArray[np.bool_]
    point: CancelPoint

    @property
    def count(self) -> int:
        """The number of requests to cancel."""
        return int(np.count_nonzero(self.chosen))


def draw_cancellations(rate: float, point: CancelPoint, stream: RandomStream, count: int) -> Cancellations:
    """Draw for each of a plan's requests, with the chance `rate`, whether it is cancelled.

    A longer plan from the same stream has the same requests cancelled, and more.
    """
    return Cancellations(stream.rng("cancelled").random(count) < rate, point)
