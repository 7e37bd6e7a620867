"""Ray cluster: how it is reached, on which nodes shards run, and whether these can send.

One shard runs on each node before a second on any. Ray is imported only when it is needed.
"""

from __future__ import annotations

import logging
import os
import platform
import secrets
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec

from loadgen import __version__
from loadgen.base import clock
from loadgen.base.errors import MeasureError, UsageError
from loadgen.base.text import describe_install
from loadgen.settings.shard_settings import ADDRESS, AUTO, LOCAL

_VARIABLE = "RAY_ADDRESS"
_REACHED_S = 10.0
_PORTS = "the head's port is 6379, that of ray:// 10001"
CPUS_PER_WORKER = 2  # one that captures, one that decodes
_PLACED_S = 15.0
_ANSWERS_S = 60.0  # Ray starts a process for the first task on a node


@contextmanager
def connect_ray(address: str) -> Iterator[Any]:
    """Connect to the cluster at an address, yield the module `ray`, and disconnect afterwards.

    "auto" is RAY_ADDRESS if it is set. A program that was connected already stays so. Handlers of signals are
    restored. Raises UsageError and MeasureError, each within a time limit.
    """
    ray = _import_ray()
    if ray.is_initialized():
        yield ray
        return
    where = os.environ.get(_VARIABLE, AUTO) if address == AUTO else address
    _check_answers(where)
    handlers = {}
    if threading.current_thread() is threading.main_thread():  # another one may not set them again
        handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        _init_ray(ray, where)
    finally:
        for number, handler in handlers.items():  # Ray sets its own
            signal.signal(number, handler)
    try:
        yield ray
    finally:
        ray.shutdown()


def _import_ray() -> Any:
    """Import Ray, with its reports of usage off; raises UsageError if it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else a warning about GPUs
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import ray
    except ImportError:
        raise UsageError(
            f"--cluster needs the ray extra: {describe_install('ray')} (on each node too)"
        ) from None
    return ray


def _init_ray(ray: Any, where: str) -> None:
    """Have Ray connect, and log nothing from then on; raises MeasureError if it cannot."""
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    vars(ray._private.worker)["_worker_logs_enabled"] = False  # else pages of a lost node's log
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(
                address=where,
                log_to_driver=False,
                logging_level=logging.CRITICAL,
                **({} if where != LOCAL else {"include_dashboard": False}),
            )
    except (ConnectionError, RuntimeError, ValueError, ImportError, TimeoutError) as error:
        raise _make_refusal_error(where, error) from None
    except SystemExit:  # what its own code does where no cluster answers in time
        raise MeasureError(f"the Ray cluster at {where} does not answer: see `ray status` there") from None


def _make_refusal_error(where: str, error: Exception) -> Exception:
    """Make the MeasureError, one line, for what Ray raised as it connected."""
    text = " ".join(str(error).split())
    if where == AUTO:
        return MeasureError(
            "no Ray cluster runs on this machine: start one (ray start --head), or give its address: "
            f"--cluster HOST:6379, --cluster ray://HOST:10001, or {_VARIABLE}"
        )
    if "ersion" in text:
        return MeasureError(f"the Ray cluster at {where} runs another Ray or Python: {text[:300]}")
    return MeasureError(f"the Ray cluster at {where} refuses: {text[:300]}")


def _check_answers(where: str) -> None:
    """Raise MeasureError if no gRPC server answers at HOST:PORT in 10 s: Ray itself takes minutes for that.

    With TLS or without grpcio only TCP is tried; ray:// without grpcio raises UsageError. Another form of
    address is not checked.
    """
    match = ADDRESS.fullmatch(where)
    if match is None:
        return
    host, port = match[2].strip("[]"), int(match[3])
    try:
        socket.create_connection((host, port), _REACHED_S).close()
    except OSError as error:
        why = error.strerror or str(error)
        raise MeasureError(
            f"no Ray cluster at {where}: {why}: is it the head's address ({_PORTS})?"
        ) from None
    if os.environ.get("RAY_USE_TLS", "0") == "1":
        return
    try:
        import grpc  # of the extra; needed for ray:// alone
    except ImportError:
        if match[1]:
            raise UsageError(f"ray:// needs grpcio: {describe_install('ray')}") from None
        return
    channel = grpc.insecure_channel(f"{match[2]}:{port}")
    try:
        grpc.channel_ready_future(channel).result(timeout=_REACHED_S)
    except grpc.FutureTimeoutError:
        raise MeasureError(
            f"what listens at {where} is no Ray cluster: is it the head's address ({_PORTS})?"
        ) from None
    finally:
        channel.close()


_SOON_NS, _SOON_S, _LATER_S = 20_000_000, 0.0002, 0.02


def wait_for_answers(
    ray: Any, refs: Sequence[Any], within_s: float, turn: Callable[[], None], every: bool
) -> list[Any]:
    """Poll Ray until all references are answered (`every`), or any one is, and return those that are.

    After `within_s` it returns those answered by then. `turn` is called between polls, and may raise.
    """
    began_ns = clock.now_ns()
    while True:
        answered, _ = ray.wait(list(refs), num_returns=len(refs), timeout=0)
        waited_ns = clock.now_ns() - began_ns
        if len(answered) >= (len(refs) if every else 1) or waited_ns >= within_s * 1e9:
            return list(answered)
        turn()
        time.sleep(_SOON_S if waited_ns < _SOON_NS else _LATER_S)


def read_last_line(error: Exception) -> str:
    """Return the last line of an error's text, 200 characters at most; the error's type if it has no text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:200] if lines else type(error).__name__


def check_room(cpus: Sequence[float], shards: int, each: int) -> None:
    """Raise UsageError where nodes of these CPUs have no room for all shards of `each` CPUs."""
    room = sum(int(count // each) for count in cpus)
    if room < shards:
        most = f"--shards {room}" if room else "add nodes"
        raise UsageError(
            f"--shards {shards} need {shards * each} CPUs, {each} each (to capture, and to decode): "
            f"the cluster's {len(cpus)} nodes have {sum(cpus):g}, room for {room}: {most}"
        )


@contextmanager
def place_shards(ray: Any, shards: int, each: int, turn: Callable[[], None]) -> Iterator[list[Any]]:
    """Reserve a place of `each` CPUs for every shard, yield Ray's strategies for them, and release them.

    Ray takes a node that has none before it takes one again. Raises UsageError and MeasureError, within a
    time limit, where there is no room. `turn` may raise.
    """
    with ExitStack() as stack:
        try:
            alive = (node for node in ray.nodes() if node["Alive"])
            check_room([float(node["Resources"].get("CPU", 0.0)) for node in alive], shards, each)
            name = f"loadgen {secrets.token_hex(2)}"
            group = ray.util.placement_group([{"CPU": each}] * shards, strategy="SPREAD", name=name)
            stack.callback(ray.util.remove_placement_group, group)
            if not wait_for_answers(ray, [group.ready()], _PLACED_S, turn, every=True):
                free = ray.available_resources().get("CPU", 0.0)
                raise MeasureError(
                    f"no room for {shards} shards of {each} CPUs: {free:g} are free, others have the rest "
                    "(ray status): lower --shards, or wait until they end"
                )
        except ray.exceptions.RayError as error:
            raise MeasureError(f"the Ray cluster places nothing: {read_last_line(error)}") from None
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as Strategy

        yield [Strategy(group, placement_group_bundle_index=number) for number in range(shards)]


class Node(msgspec.Struct, frozen=True):
    """The machine of a shard, as it reports itself."""

    name: str
    python: str
    loadgen: str  # "": there is none

    def __str__(self) -> str:
        return f"node {self.name}"


def find_nodes(ray: Any, places: Sequence[Any], turn: Callable[[], None]) -> list[Node]:
    """Ask the node of each place for its name and versions, and return the nodes in the places' order.

    Raises MeasureError if one does not answer within 60 s, is lost, or has another loadgen or Python.
    """

    def answer() -> tuple[str, str, str]:  # nested, so that Ray sends it by value
        import platform as there

        try:
            from loadgen import __version__ as version
        except ImportError:
            version = ""
        return there.node(), there.python_version(), version

    task = ray.remote(num_cpus=0)(answer)
    refs = [task.options(scheduling_strategy=place, name="loadgen check").remote() for place in places]
    try:
        there = wait_for_answers(ray, refs, _ANSWERS_S, turn, every=True)
        if len(there) < len(refs):
            raise MeasureError(
                f"{len(refs) - len(there)} of {len(refs)} shards' nodes did not answer within "
                f"{_ANSWERS_S:.0f} s: see `ray status`"
            )
        answers = ray.get(refs, timeout=_ANSWERS_S)
    except (ray.exceptions.RayError, ConnectionError) as error:
        raise MeasureError(
            f"a node of the cluster was lost while it was checked: {read_last_line(error)}"
        ) from None
    nodes = [Node(*answer) for answer in answers]
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
    if node.python.split(".")[:2] != list(platform.python_version_tuple()[:2]):
        raise MeasureError(
            f"{node} has Python {node.python}, here runs {platform.python_version()}: use the same on all"
        )
