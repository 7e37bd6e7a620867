"""Requests: what the requests of a plan hold, each available at any time and in any order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from loadgen.base.arrays import Int64
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
