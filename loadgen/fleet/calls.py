"""Calls: questions to the shards of a cluster and their answers, each waited for up to a limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec

from loadgen.base import clock
from loadgen.fleet import waiting
from loadgen.fleet.node_check import Node

_CLOSES_S = 5.0


class Answer(msgspec.Struct, frozen=True):
    """A shard's answer, or why it is lost."""

    shard: int
    method: str
    value: Any = None
    lost: str = ""


class Calls(Protocol):
    """The shards, numbered from 0, each asked one thing at a time."""

    @property
    def nodes(self) -> Sequence[Node]:
        """The machine of each."""
        ...

    def ask(self, shard: int, method: str, *arguments: Any) -> None:
        """Ask one, without waiting."""
        ...

    def take_answers(self, within_s: float) -> list[Answer]:
        """Return the answers so far, once there is one, or the time is over."""
        ...

    def release(self) -> None:
        """End every shard at once, and all that it started."""
        ...


class RayCalls:
    """One Ray actor for each shard."""

    def __init__(self, ray: Any, actors: Sequence[Any], nodes: Sequence[Node]) -> None:
        self.ray, self.actors, self.nodes = ray, list(actors), nodes
        self._asked: dict[Any, tuple[int, str]] = {}  # the shard and the method, by Ray's reference

    def ask(self, shard: int, method: str, *arguments: Any) -> None:
        self._asked[getattr(self.actors[shard], method).remote(*arguments)] = shard, method

    def take_answers(self, within_s: float) -> list[Answer]:
        if not self._asked:
            return []
        there = waiting.wait_for_answers(self.ray, list(self._asked), within_s, lambda: None, every=False)
        return [self._answer(ref) for ref in there]

    def release(self) -> None:
        if not self.actors:
            return
        actors, self.actors = self.actors, []
        self._asked.clear()
        closing = [actor.close.remote() for actor in actors]
        waiting.wait_for_answers(self.ray, closing, _CLOSES_S, lambda: None, every=True)
        for actor in actors:
            self.ray.kill(actor)

    def _answer(self, ref: Any) -> Answer:
        (shard, method), errors = self._asked.pop(ref), self.ray.exceptions
        try:
            return Answer(shard, method, self.ray.get(ref, timeout=_CLOSES_S))
        except (errors.ActorDiedError, errors.ActorUnavailableError):
            return Answer(shard, method, lost=f"{self.nodes[shard]}, or Ray's process on it, ended")
        except (errors.RayError, ConnectionError, TimeoutError) as error:
            return Answer(shard, method, lost=f"{self.nodes[shard]}: {waiting.read_last_line(error)}")


def ask_all(
    calls: Calls,
    shards: Iterable[int],
    question: Callable[[int], tuple[Any, ...]],
    within_s: float,
    turn: Callable[[], None],
) -> list[Answer]:
    """The answer of each shard to its question, a method and its arguments.

    One that is not there in time is lost. `turn` is called a few times a second.
    """
    methods: dict[int, str] = {}
    for shard in shards:
        method, *arguments = question(shard)
        methods[shard] = method
        calls.ask(shard, method, *arguments)
    answers: dict[int, Answer] = {}
    until_ns = clock.now_ns() + int(within_s * 1e9)
    while methods and (left_s := (until_ns - clock.now_ns()) / 1e9) > 0:
        for answer in calls.take_answers(min(left_s, 0.2)):
            if methods.get(answer.shard) == answer.method or (answer.lost and answer.shard in methods):
                answers[answer.shard] = answer
                del methods[answer.shard]
        turn()
    for shard, method in methods.items():
        silent = f"{calls.nodes[shard]} did not answer for {within_s:.0f} s"
        answers[shard] = Answer(shard, method, lost=silent)
    return [answers[shard] for shard in sorted(answers)]
