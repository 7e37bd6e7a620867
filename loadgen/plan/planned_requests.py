"""Planned requests: what they hold, at any time and in any order; their turns; which are given up."""

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
    """The requests of one run.

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
        """The fields of request i: all but those that the whole plan shares, which are laid over them.

        Some may be JSON already (msgspec.Raw).
        """
        ...

    def digest(self) -> str:
        """A fingerprint: equal requests have equal digests, in every process, on every machine."""
        ...


class TurnRequests(Requests, Protocol):
    """The requests of sessions, whose turns may have the server's own answers as their history."""

    def request_after(
        self, i: int, answers: Sequence[dict[str, Any]], dialect: Dialect, model: str
    ) -> dict[str, Any]:
        """The fields of request i with these answers, messages, in place of its session's first ones."""
        ...


@runtime_checkable
class MadeTurns(Protocol):
    """The texts of conversations that are made here, each at any time."""

    @property
    def output_lens(self) -> Int64: ...
    def system(self, session: int) -> str:
        """The system prompt of a session; "" where there is none."""
        ...

    def message(self, i: int) -> str:
        """The user's message of request i."""
        ...

    def answer(self, i: int) -> str:
        """The answer to request i that is made here."""
        ...


class PromptRequests:
    """Requests of one prompt each, in the dialect's own words; a class of such has `prompt`."""

    __slots__ = ()
    format: str
    input_lens: Int64
    output_lens: Int64

    def prompt(self, i: int) -> list[int] | str:
        """The prompt of request i: token ids or text."""
        raise NotImplementedError

    def request(self, i: int, dialect: Dialect, model: str) -> dict[str, Any]:
        """The fields of request i; raises UsageError where the API cannot take such a prompt."""
        return dialect.make_request(model, self.prompt(i), int(self.output_lens[i]))

    def digest(self) -> str:
        """A fingerprint of all lengths and of the first 64 prompts, from which the others follow."""
        first = min(len(self.input_lens), DIGESTED_PROMPTS)
        prompts = (msgspec.json.encode(self.prompt(i)) for i in range(first))
        return fingerprint(self.format, (self.input_lens, self.output_lens), prompts)


def fingerprint(form: str, columns: Iterable[Int64], contents: Iterable[bytes]) -> str:
    """A hash of a format's name, of int64 columns, and of what the requests hold, in this order."""
    hashed = hashlib.blake2b(form.encode(), digest_size=16)
    for column in columns:
        hashed.update(column.astype("<i8").tobytes())
    for content in contents:
        hashed.update(content)
    return hashed.hexdigest()


class Turns(msgspec.Struct, frozen=True):
    """Which requests of a plan are the turns of which session, and how long each waits; in nanoseconds.

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
        """The turns of each session, int64[sessions]."""
        return np.diff(self.begins)

    def numbers(self) -> Int64:
        """The session of each request, int64[requests]."""
        return np.repeat(np.arange(len(self), dtype=np.int64), self.counts)

    def end(self, session: int) -> int:
        """The plan index after that of a session's last turn."""
        return int(self.begins[session + 1])

    def take_first(self, sessions: int) -> Turns:
        """The first of the sessions, as many as are asked for."""
        begins = self.begins[: sessions + 1]
        return Turns(begins, self.delays_ns[: begins[-1]])

    def scale_delays(self, factor: float) -> Turns:
        """With the delays multiplied by a factor, rounded to nanoseconds."""
        return Turns(self.begins, np.rint(self.delays_ns * factor).astype(np.int64))


def make_turns(counts: Int64, delays_ns: Int64) -> Turns:
    """The turns of sessions; `counts`, int64[sessions], is the number of turns of each, at least 1."""
    return Turns(np.concatenate(([0], np.cumsum(counts))).astype(np.int64), delays_ns)


class Cancellations(msgspec.Struct, frozen=True):
    """The requests of a plan that are to be given up, bool[requests], and when each is."""

    chosen: NDArray[np.bool_]
    point: CancelPoint

    @property
    def count(self) -> int:
        """How many there are."""
        return int(np.count_nonzero(self.chosen))


def draw_cancellations(rate: float, point: CancelPoint, stream: RandomStream, count: int) -> Cancellations:
    """A share of a plan's requests, each drawn apart from its content and its time.

    A longer plan from the same stream has the same requests cancelled, and more.
    """
    return Cancellations(stream.rng("cancelled").random(count) < rate, point)
