"""Placement: on which nodes shards run, one on each before a second on any, and whether these can send."""

from __future__ import annotations

import platform
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from loadgen import __version__
from loadgen.base.errors import MeasureError, UsageError
from loadgen.fleet import connection

CPUS_PER_WORKER = 2  # one that captures, one that decodes
_PLACED_S = 15.0
_ANSWERS_S = 60.0  # Ray starts a process for the first task on a node


class Place(msgspec.Struct, frozen=True):
    """Where one shard runs: a bundle of a placement group, with CPUs of its own."""

    group: Any
    bundle: int

    @property
    def strategy(self) -> Any:
        """Ray's scheduling strategy that puts an actor or a task into this bundle."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=self.bundle)


def plan_rounds(cpus: Mapping[str, float], shards: int, each: int) -> list[int]:
    """Return how many shards of `each` CPUs every round places, no two of a round on one node.

    `cpus` are the nodes' CPUs. Raises UsageError where there is no room for all shards.
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
    """Reserve a place of `each` CPUs for every shard, yield the places, and release them afterwards.

    Raises UsageError and MeasureError, within a time limit, where there is no room. `turn` may raise.
    """
    groups: list[Any] = []
    try:
        try:
            alive = (node for node in ray.nodes() if node["Alive"])
            cpus = {node["NodeID"]: float(node["Resources"].get("CPU", 0.0)) for node in alive}
            places = list(_place_rounds(ray, plan_rounds(cpus, shards, each), each, groups, turn))
        except ray.exceptions.RayError as error:
            raise MeasureError(
                f"the Ray cluster places nothing: {connection.read_last_line(error)}"
            ) from None
        yield places
    finally:
        for group in groups:
            ray.util.remove_placement_group(group)


def _place_rounds(
    ray: Any, sizes: Sequence[int], each: int, groups: list[Any], turn: Callable[[], None]
) -> Iterator[Place]:
    """Reserve a placement group per round, on as many nodes as places, else on any, and yield its places.

    Each group is added to `groups`, which the caller releases. Raises MeasureError if neither is free in 15
    s.
    """
    run = secrets.token_hex(2)
    for size in sizes:
        for strategy in ("STRICT_SPREAD", "SPREAD"):
            group = ray.util.placement_group(
                [{"CPU": each}] * size, strategy=strategy, name=f"loadgen {run}-{len(groups)} {strategy}"
            )
            groups.append(group)
            if connection.wait_for_answers(ray, [group.ready()], _PLACED_S, turn, every=True):
                yield from (Place(group, bundle) for bundle in range(size))
                break
            ray.util.remove_placement_group(groups.pop())
        else:
            free = ray.available_resources().get("CPU", 0.0)
            raise MeasureError(
                f"no room for {sum(sizes)} shards of {each} CPUs: {free:g} are free, others have the rest "
                "(ray status): lower --shards, or wait until they end"
            )


class Node(msgspec.Struct, frozen=True):
    """The machine of a shard, as it reports itself."""

    name: str
    ray_id: str
    python: str
    loadgen: str  # "": there is none

    def __str__(self) -> str:
        return f"node {self.name}"


def _make_question() -> Callable[[], tuple[str, str, str]]:
    """Return a function that returns a node's name, Python version and loadgen version, "" without loadgen.

    It is nested, so that Ray sends it by value.
    """

    def answer() -> tuple[str, str, str]:
        import platform as there
        from importlib import import_module

        try:
            version = str(import_module("loadgen").__version__)
        except ImportError:
            version = ""
        return there.node(), there.python_version(), version

    return answer


def find_nodes(ray: Any, places: Sequence[Place], turn: Callable[[], None]) -> list[Node]:
    """Ask the node of each place for its name and versions, and return the nodes in the places' order.

    Raises MeasureError if one does not answer within 60 s, is lost, or has another loadgen or Python.
    """
    question = _make_question()

    def ask_node() -> tuple[str, tuple[str, str, str]]:
        import ray as there

        return there.get_runtime_context().get_node_id(), question()

    task = ray.remote(num_cpus=0)(ask_node)
    refs = [
        task.options(scheduling_strategy=place.strategy, name="loadgen check").remote() for place in places
    ]
    try:
        there = connection.wait_for_answers(ray, refs, _ANSWERS_S, turn, every=True)
        if len(there) < len(refs):
            raise MeasureError(
                f"{len(refs) - len(there)} of {len(refs)} shards' nodes did not answer within "
                f"{_ANSWERS_S:.0f} s: see `ray status`"
            )
        answers = ray.get(refs, timeout=_ANSWERS_S)
    except (ray.exceptions.RayError, ConnectionError) as error:
        raise MeasureError(
            f"a node of the cluster was lost while it was checked: {connection.read_last_line(error)}"
        ) from None
    nodes = [Node(name, ray_id, python, version) for ray_id, (name, python, version) in answers]
    for node in nodes:
        check_node(node)
    return nodes


def check_node(node: Node) -> None:
    """Raise MeasureError where a node has another loadgen than this one, another Python, or none."""
    if not node.loadgen:
        raise MeasureError(f"{node} has no loadgen: install {__version__}, which runs here, on every node")
    if node.loadgen != __version__:
        raise MeasureError(
            f"{node} has loadgen {node.loadgen}, here runs {__version__}: install the same on every node"
        )
    if strip_patch(node.python) != strip_patch(platform.python_version()):
        raise MeasureError(
            f"{node} has Python {node.python}, here runs {platform.python_version()}: use the same on all"
        )


def strip_patch(version: str) -> str:
    """Return the first two parts of a Python version: 3.12 of 3.12.4."""
    return ".".join(version.split(".")[:2])
