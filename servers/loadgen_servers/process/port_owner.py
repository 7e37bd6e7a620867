"""Port owner: which process listens on a port, so that no other server is measured by mistake."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path

import psutil

from loadgen_servers.launch.spec import Command, LaunchError, shown

# The addresses of a listening socket that accepts connections to 127.0.0.1, and to localhost.
_TAKES_LOOPBACK = ("127.0.0.1", "0.0.0.0", "::", "::ffff:127.0.0.1")  # nosec B104 # read, not bound
_TAKES_LOCALHOST = (*_TAKES_LOOPBACK, "::1")
_TABLES, _LISTENS = (Path("/proc/net/tcp"), Path("/proc/net/tcp6")), "0A"
_SHELLS = ("sh", "bash", "dash", "zsh", "fish", "ksh", "tcsh")
_LINE_CHARACTERS = 100


class ForeignListener(LaunchError):
    """Another process listens on the port."""


class PortOwner(Enum):
    """Who listens on a port, if it is no other server."""

    OURS = "the listening socket belongs to the process tree that was started"
    NO_ONE = "no process listens on the port"
    UNKNOWN = "not known: this user may not see which process the listening socket belongs to"


def check(running_pids: Sequence[int], port: int) -> PortOwner:
    """Who listens on 127.0.0.1:`port`; raises ForeignListener unless all listeners are among `running_pids`.

    All, since processes that set SO_REUSEPORT share a port, and requests go to any of them.
    """
    try:
        owners = _listeners(port, _TAKES_LOOPBACK)
    except psutil.AccessDenied:
        return PortOwner.UNKNOWN
    others = [pid for pid in owners if pid is not None and pid not in running_pids]
    if others:
        raise ForeignListener(f"port {port} is served by {_described(others[0])}: stop that, or start again")
    if None not in owners:
        return PortOwner.OURS if owners else PortOwner.NO_ONE
    if not running_pids or not all(map(_may_look_into, running_pids)):
        return PortOwner.UNKNOWN
    raise ForeignListener(f"port {port} is served by a process of another user: start again, on another port")


def listening(port: int) -> psutil.Process | None:
    """The first process of the server that listens on a port of this machine; None if it is not known.

    It is found from the listener upwards, as long as the parent is of the same session and neither a
    shell nor an ancestor of this process. It searches every process of the machine: not during a run.
    """
    try:
        pids = _holders(port)
        if not pids:
            return None
        ours = {process.pid for process in [psutil.Process(), *psutil.Process().parents()]}
        first = psutil.Process(pids[0])
        while (parent := first.parent()) and _same_server(parent, first) and parent.pid not in ours:
            first = parent
    except psutil.Error:
        return None
    return first


def tree(root: psutil.Process) -> list[psutil.Process]:
    """A process and its descendants, without zombies."""
    try:
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
    return [process for process in processes if alive(process)]


def alive(process: psutil.Process) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _listeners(port: int, addresses: Sequence[str]) -> list[int | None]:
    """The listening pids, None for one that this user may not see; raises AccessDenied if it may see none."""
    return [
        connection.pid
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
        and connection.laddr
        and connection.laddr.port == port
        and connection.laddr.ip in addresses
    ]


def _holders(port: int) -> list[int]:
    """Processes that hold a socket listening on localhost:`port`; on Linux one at most.

    psutil would read every connection first, those of the last minute's runs too: 0.1 s for ten thousand.
    """
    if not _TABLES[0].exists():
        return [pid for pid in _listeners(port, _TAKES_LOCALHOST) if pid is not None]
    sockets = {f"socket:[{inode}]" for table in _TABLES for inode in _inodes(table, port)}
    newest_first = sorted(psutil.pids() if sockets else (), reverse=True)
    return next(([pid] for pid in newest_first if not sockets.isdisjoint(_links(pid))), [])


def _inodes(table: Path, port: int) -> Iterator[str]:
    """The sockets that listen on localhost:`port`; the kernel lists all that listen before the others."""
    places = {f"{_as_listed(ip)}:{port:04X}" for ip in _TAKES_LOCALHOST}
    with suppress(OSError), table.open() as lines:
        next(lines, None)  # the head
        for columns in map(str.split, lines):
            if columns[3] != _LISTENS:
                return
            if columns[1] in places:
                yield columns[9]


def _as_listed(ip: str) -> str:
    """An address as the kernel lists it: each four bytes as a number of this machine."""
    packed = socket.inet_pton(socket.AF_INET6 if ":" in ip else socket.AF_INET, ip)
    return "".join(f"{word:08X}" for (word,) in struct.iter_unpack("=I", packed))


def _links(pid: int) -> Iterator[str]:
    """What a process has open, where this user may see it."""
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                yield os.readlink(f"/proc/{pid}/fd/{name}")


def _described(pid: int) -> str:
    try:
        line = shown(Command(tuple(psutil.Process(pid).cmdline()), {}))
    except psutil.Error:
        line = ""
    line = " ".join(line.split())
    clipped = line if len(line) <= _LINE_CHARACTERS else f"{line[:_LINE_CHARACTERS]}…"
    return f"another process, pid {pid}" + (f" ({clipped})" if clipped else "")


def _may_look_into(pid: int) -> bool:
    try:
        os.listdir(f"/proc/{pid}/fd")
    except FileNotFoundError:
        return True  # it has ended, so the socket is not its own
    except OSError:
        return False
    return True


def _same_server(parent: psutil.Process, child: psutil.Process) -> bool:
    try:
        return os.getsid(parent.pid) == os.getsid(child.pid) and parent.name() not in _SHELLS
    except OSError:
        return False
