"""Placement: on which nodes shards run: one on each node, then a second on each, and so on."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from loadgen.base.errors import MeasureError, UsageError
from loadgen.fleet import waiting

CPUS_PER_WORKER = 2  # one that captures, one that decodes
_PLACED_S = 15.0


class Place(msgspec.Struct, frozen=True):
    """Where one shard runs: a bundle of a placement group, with CPUs of its own."""

    group: Any
    bundle: int

    @property
    def strategy(self) -> Any:
        """The strategy by which Ray schedules an actor or a task there."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=self.bundle)


def plan_rounds(cpus: Mapping[str, float], shards: int, each: int) -> list[int]:
    """How many shards each round places on as many different nodes, of the nodes' CPUs by name.

    Raises UsageError where there is no room for all.
    """
    rooms = [int(count // each) for count in cpus.values()]
    if sum(rooms) < shards:
        total = sum(cpus.values())
        most = f"--shards {sum(rooms)}" if sum(rooms) else "add nodes"
        raise UsageError(
            f"--shards {shards} need {shards * each} CPUs, {each} each (to capture, and to decode): "
            f"the cluster's {len(cpus)} nodes have {total:g}, room for {sum(rooms)}: {most}"
        )
    sizes: list[int] = []
    while shards > sum(sizes):
        here = sum(room > len(sizes) for room in rooms)
        sizes.append(min(here, shards - sum(sizes)))
    return sizes


@contextmanager
def place_shards(ray: Any, shards: int, each: int, turn: Callable[[], None]) -> Iterator[list[Place]]:
    """The places of shards with `each` CPUs, which no one else has until the end.

    Raises UsageError and MeasureError, within a time limit, where there is no room.
    """
    groups: list[Any] = []
    try:
        try:
            places = list(_place_rounds(ray, plan_rounds(_read_cpus(ray), shards, each), each, groups, turn))
        except ray.exceptions.RayError as error:
            raise MeasureError(f"the Ray cluster places nothing: {waiting.read_last_line(error)}") from None
        yield places
    finally:
        for group in groups:
            ray.util.remove_placement_group(group)


def _read_cpus(ray: Any) -> dict[str, float]:
    return {node["NodeID"]: float(node["Resources"].get("CPU", 0.0)) for node in ray.nodes() if node["Alive"]}


def _place_rounds(
    ray: Any, sizes: Sequence[int], each: int, groups: list[Any], turn: Callable[[], None]
) -> Iterator[Place]:
    """One group a round, on as many nodes; where others use a node's CPUs, on those that are free."""
    run = secrets.token_hex(2)
    for size in sizes:
        for strategy in ("STRICT_SPREAD", "SPREAD"):
            group = ray.util.placement_group(
                [{"CPU": each}] * size, strategy=strategy, name=f"loadgen {run}-{len(groups)} {strategy}"
            )
            groups.append(group)
            if waiting.wait_for_answers(ray, [group.ready()], _PLACED_S, turn, every=True):
                yield from (Place(group, bundle) for bundle in range(size))
                break
            ray.util.remove_placement_group(groups.pop())
        else:
            free = ray.available_resources().get("CPU", 0.0)
            raise MeasureError(
                f"no room for {sum(sizes)} shards of {each} CPUs: {free:g} are free, others have the rest "
                "(ray status): lower --shards, or wait until they end"
            )
