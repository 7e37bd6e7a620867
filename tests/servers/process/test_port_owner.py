"""Ownership: a foreign server on the port is told from one's own, and from what cannot be known."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from builders.loops import loop_over
from fakes.supervised import HAS_WORKER, LISTENS, listens, server, until
from loadgen_servers.process.port_owner import ForeignListener, PortOwner, check, listening, tree
from loadgen_servers.process.running import free_port

ME, SOMEBODY = os.getpid(), 2**22 + 1  # above the largest pid of Linux


def listening_tree(port: int) -> list[int]:
    """The processes of the server on a port, its first process first; [] where nobody knows."""
    first = listening(port)
    return [process.pid for process in tree(first)] if first is not None else []


def listener(ip: str, port: int, pid: int | None, status: str = psutil.CONN_LISTEN) -> SimpleNamespace:
    return SimpleNamespace(status=status, laddr=SimpleNamespace(ip=ip, port=port), pid=pid)


def listeners(port: int) -> set[int | None]:
    found = [one for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
    return {one.pid for one in found if one.laddr and one.laddr.port == port}


def seen(*connections: SimpleNamespace) -> Callable[[str], list[SimpleNamespace]]:
    return lambda kind: list(connections)


@contextmanager
def serving(code: str, port: int, *more: str) -> Iterator[int]:
    """A server apart, in a session of its own; its first pid."""
    argv = [*server(code, port).argv, *more]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        try:
            until(lambda: listens(port), "the server listens")
            yield process.pid
        finally:
            for one in tree(psutil.Process(process.pid)):
                one.kill()


def test_a_port_is_its_listeners_and_no_one_elses() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as client,
    ):
        assert check([ME], listening.getsockname()[1]) is PortOwner.OURS
        assert check([ME], client.getsockname()[1]) is PortOwner.NO_ONE
    assert check([ME], free_port()) is PortOwner.NO_ONE
    assert listening_tree(free_port()) == []


@pytest.mark.whole
def test_a_foreign_server_is_named_without_its_secrets() -> None:
    port = free_port()
    with (
        serving(LISTENS, port, "--api-key", "hush") as pid,
        pytest.raises(
            ForeignListener, match=f"port {port} is served by another process, pid {pid} "
        ) as refused,
    ):
        check([ME], port)
    assert sys.executable in str(refused.value)
    assert "hush" not in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.whole
def test_a_foreign_server_beside_ones_own_is_found() -> None:
    """vLLM sets SO_REUSEPORT: two of them listen on one port, and each is asked half the time."""
    shares = "s = socket.create_server(('127.0.0.1', int(sys.argv[1])), reuse_port=True); wait()"
    port = free_port()
    with serving(shares, port) as ours, serving(shares, port) as theirs:
        assert ours != theirs
        until(lambda: listeners(port) == {ours, theirs}, "both listen")
        with pytest.raises(ForeignListener, match=f"pid {theirs} "):
            check([ours], port)
        assert check([ours, theirs], port) is PortOwner.OURS


@loop_over(("connections", "running", "owner"), [
    ([listener("0.0.0.0", 8000, ME)], [ME], PortOwner.OURS),
    ([listener("::", 8000, ME)], [ME], PortOwner.OURS),
    ([listener("127.0.0.1", 8001, SOMEBODY)], [ME], PortOwner.NO_ONE),
    ([listener("10.0.0.7", 8000, SOMEBODY)], [ME], PortOwner.NO_ONE),
    ([listener("127.0.0.1", 8000, SOMEBODY, psutil.CONN_ESTABLISHED)], [ME], PortOwner.NO_ONE),
    ([listener("127.0.0.1", 8000, None)], [], PortOwner.UNKNOWN),
])  # fmt: skip
def test_who_takes_what_is_sent_to_loopback(
    monkeypatch: pytest.MonkeyPatch, connections: list[SimpleNamespace], running: list[int], owner: PortOwner
) -> None:
    monkeypatch.setattr(psutil, "net_connections", seen(*connections))
    assert check(running, 8000) is owner


def test_a_socket_of_a_hidden_owner_is_foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or not known, where a process of ours may not be looked into."""
    monkeypatch.setattr(psutil, "net_connections", seen(listener("127.0.0.1", 8000, None)))
    with pytest.raises(ForeignListener, match="port 8000 is served by a process of another user"):
        check([ME, SOMEBODY], 8000)
    monkeypatch.setattr(os, "listdir", refusing(PermissionError()))
    assert check([ME], 8000) is PortOwner.UNKNOWN


def refusing(error: Exception) -> Callable[[str], list[Any]]:
    def refuse(_: str) -> list[Any]:
        raise error

    return refuse


def test_where_no_socket_may_be_seen_it_is_unknown_and_there_is_no_tree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(psutil, "net_connections", refusing(psutil.AccessDenied()))
    assert check([ME], 8000) is PortOwner.UNKNOWN
    assert listening_tree(8000) == []


@pytest.mark.whole
def test_the_tree_of_a_listening_worker_begins_with_its_server() -> None:
    port = free_port()
    with serving(HAS_WORKER, port) as first:
        found = listening_tree(port)
        assert found[0] == first
        assert [psutil.Process(pid).ppid() for pid in found[1:]] == [first]


@pytest.mark.whole
def test_the_tree_does_not_reach_up_to_what_started_it_and_us() -> None:
    port = free_port()
    argv = server(LISTENS, port).argv
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as process:  # of our own session
        try:
            until(lambda: listens(port), "the server listens")
            assert listening_tree(port) == [process.pid]
        finally:
            process.kill()


@pytest.mark.whole
def test_the_tree_stops_below_a_shell() -> None:
    port = free_port()
    argv = ["sh", "-c", '"$@"; true', "sh", *server(LISTENS, port).argv]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, start_new_session=True) as shell:
        try:
            until(lambda: listens(port), "the server listens")
            assert listening_tree(port) == [child.pid for child in psutil.Process(shell.pid).children()]
        finally:
            for one in tree(psutil.Process(shell.pid)):
                one.kill()


@pytest.mark.whole
def test_a_process_that_has_ended_has_no_tree() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        process = psutil.Process(ended.pid)
        until(lambda: process.status() == psutil.STATUS_ZOMBIE, "it is a zombie")
        assert tree(process) == []
    assert tree(process) == []
