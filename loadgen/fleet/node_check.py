"""Node check: whether the machine of a shard can send its part: which Python, which loadgen."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from loadgen import __version__
from loadgen.base.errors import MeasureError
from loadgen.fleet import waiting
from loadgen.fleet.placement import Place

_ANSWERS_S = 60.0  # Ray starts a process for the first task on a node


class Node(msgspec.Struct, frozen=True):
    """The machine of a shard, as it reports itself."""

    name: str
    ray_id: str
    python: str
    loadgen: str  # "": there is none

    def __str__(self) -> str:
        return f"node {self.name}"


def _make_question() -> Callable[[], tuple[str, str, str]]:
    """Make the question to a node; made here, so that it is sent as code: loadgen may not be there."""

    def answer() -> tuple[str, str, str]:
        import platform as there
        from importlib import import_module

        try:
            version = str(import_module("loadgen").__version__)
        except ImportError:
            version = ""
        return there.node(), there.python_version(), version

    return answer


def nodes_of(ray: Any, places: Sequence[Place], turn: Callable[[], None]) -> list[Node]:
    """The machine of each shard; raises MeasureError that names the first that cannot send a part."""
    question = _make_question()

    def ask_node() -> tuple[str, tuple[str, str, str]]:
        import ray as there

        return there.get_runtime_context().get_node_id(), question()

    task = ray.remote(num_cpus=0)(ask_node)
    refs = [
        task.options(scheduling_strategy=place.strategy, name="loadgen check").remote() for place in places
    ]
    try:
        there = waiting.wait_for_answers(ray, refs, _ANSWERS_S, turn, every=True)
        if len(there) < len(refs):
            raise MeasureError(
                f"{len(refs) - len(there)} of {len(refs)} shards' nodes did not answer within "
                f"{_ANSWERS_S:.0f} s: see `ray status`"
            )
        answers = ray.get(refs, timeout=_ANSWERS_S)
    except (ray.exceptions.RayError, ConnectionError) as error:
        raise MeasureError(
            f"a node of the cluster was lost while it was checked: {waiting.read_last_line(error)}"
        ) from None
    nodes = [Node(name, ray_id, python, version) for ray_id, (name, python, version) in answers]
    for node in nodes:
        check_node(node)
    return nodes


def check_node(node: Node) -> None:
    """Raises MeasureError where a node has another loadgen than this one, another Python, or none."""
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
    """A version of Python without its patch level."""
    return ".".join(version.split(".")[:2])
