"""Small servers as real processes, and what is left of them."""

from __future__ import annotations

import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from loadgen_servers.launch.spec import Command
from loadgen_servers.process.port_owner import alive

MARK = "LOADGEN_STARTED_BY_A_TEST"
PATIENCE_S = 60.0

# Each is Python that `listen(port)` stands before; sys.argv[1] is the port.
LISTENS = "listen(); wait()"
IGNORES_SIGTERM = "signal.signal(signal.SIGTERM, signal.SIG_IGN); listen(); wait()"
# A worker as vLLM's: it outlives the first process, and needs to be killed.
HAS_WORKER = """
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    listen()
    wait()
wait()
"""
LEAVES_WORKERS = """
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.setsid()
    listen()
    wait()
until_listening()
os._exit(7)
"""
LEAVES_DAEMON = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        listen()
        wait()
    os._exit(0)
wait()
"""
_PRELUDE = """
import os, signal, socket, sys, time
def listen():
    global listener
    listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    print("listening", flush=True)
def wait():
    while True:
        time.sleep(1000)
def until_listening():
    while True:
        try:
            return socket.create_connection(("127.0.0.1", int(sys.argv[1]))).close()
        except OSError:
            time.sleep(0.01)
"""


def server(code: str, port: int) -> Command:
    """The command that runs one of the servers above on `port`."""
    return Command((sys.executable, "-c", _PRELUDE + code, str(port)), {})


@contextmanager
def running(command: str, port: int) -> Iterator[str]:
    """The base URL of a server that a --launch-command starts on a port; killed at the end."""
    process = subprocess.Popen(shlex.split(command.format(port=port)), stdout=subprocess.DEVNULL)
    try:
        until(lambda: listens(port), "the server listens")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(PATIENCE_S)


def until(done: Callable[[], bool], what: str) -> None:
    """Wait for it, with patience for a busy machine."""
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline, f"still not so: {what}"
        time.sleep(0.02)


def listens(port: int) -> bool:
    """Whether somebody takes connections on the port."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def marked(mark: str) -> list[psutil.Process]:
    """The live processes that a test started, supervisors too: those whose environment has its mark."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and alive(process):
                found.append(process)
        except (psutil.Error, OSError):
            continue  # it has just ended, or is somebody else's
    return found


def nothing_is_left(mark: str, port: int) -> None:
    """Wait until no process with the mark lives and the port is free."""
    until(lambda: not marked(mark), "no process is left")
    assert not listens(port)


def text(path: Path) -> str:
    """What a log holds, "" before it is there."""
    return path.read_text("utf-8") if path.exists() else ""
