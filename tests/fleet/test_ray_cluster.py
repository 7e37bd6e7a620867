"""How a cluster is reached, the line for each way in which it cannot be, and where shards are placed."""

from __future__ import annotations

import socket
import sys

import pytest

from builders.loops import loop_over
from loadgen.base.errors import MeasureError, UsageError
from loadgen.fleet import ray_cluster
from loadgen.fleet.ray_cluster import Node, check_node, check_room
from loadgen.settings import shard_settings


@loop_over("text", ["auto", "local", "head:6379", "127.0.0.1:6379", "ray://head:10001", "[::1]:6379"])
def test_an_address_of_a_cluster_is_taken_as_it_is(text: str) -> None:
    assert shard_settings.check_address(text) == text


@loop_over("text", ["", "head", "http://head:8265", "head:0", "head:99999", "ray://head", "a b:1"])
def test_what_is_no_address_is_refused_with_how_to_write_one(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"is not an address: give auto, local, HOST:PORT or ray://HOST:PORT$"
    ):
        shard_settings.check_address(text)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"^--cluster needs the ray extra: .* install '\.\[ray\]'"):
        ray_cluster._import_ray()


def test_an_address_where_nothing_listens_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(MeasureError) as error:
        ray_cluster._check_answers(f"127.0.0.1:{port}")
    assert str(error.value) == (
        f"no Ray cluster at 127.0.0.1:{port}: Connection refused: is it the head's address (the head's port "
        "is 6379, that of ray:// 10001)?"
    )


@pytest.mark.whole
def test_another_program_at_the_address_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "_ANSWERS_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(MeasureError, match=f"what listens at 127.0.0.1:{port} is no Ray cluster"):
            ray_cluster._check_answers(f"127.0.0.1:{port}")


@loop_over(
    ("error", "where", "message"),
    [
        (ConnectionError("Could not find any"), "auto", "no Ray cluster runs on this machine: start one"),
        (
            RuntimeError("Version mismatch: Ray: 2.9"),
            "head:1",
            "at head:1 runs another Ray or Python: Version",
        ),
        (ValueError("line\n  and  line"), "head:1", "at head:1 refuses: line and line"),
    ],
)
def test_why_ray_was_not_joined_is_one_line(error: Exception, where: str, message: str) -> None:
    refusal = str(ray_cluster._make_refusal_error(where, error))
    assert message in refusal
    assert "\n" not in refusal


@loop_over(
    ("python", "version", "message"),
    [
        ("", "", "node a has no loadgen: install "),
        ("3.11.1", "0.0.1", "node a has loadgen 0.0.1, here runs "),
        ("2.7.18", None, "node a has Python 2.7.18, here runs "),
    ],
)
def test_a_node_that_differs_is_named(python: str, version: str | None, message: str) -> None:
    from loadgen import __version__

    node = Node("a", python, __version__ if version is None else version)
    with pytest.raises(MeasureError, match=f"^{message}"):
        check_node(node)


def test_a_node_with_the_same_versions_is_taken() -> None:
    import platform

    from loadgen import __version__

    check_node(Node("a", platform.python_version(), __version__))


@loop_over(
    ("cpus", "message"),
    [
        (
            [4, 3],
            "--shards 5 need 10 CPUs, 2 each (to capture, and to decode): the cluster's 2 nodes have 7, room "
            "for 3: --shards 3",
        ),
        (
            [1],
            "--shards 5 need 10 CPUs, 2 each (to capture, and to decode): the cluster's 1 nodes have 1, room "
            "for 0: add nodes",
        ),
    ],
)
def test_what_has_no_room_is_refused_with_what_there_is(cpus: list[float], message: str) -> None:
    with pytest.raises(UsageError) as error:
        check_room(cpus, 5, 2)
    assert str(error.value) == message
