"""A network of a test's own: threads in network namespaces, whose links harm no one else."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import threading
from collections.abc import Callable

import pytest

from benchmarks.harness.impaired_path import ImpairedPath, Impairment
from benchmarks.harness.process import CouldNotRun

_CLONE_NEWNET = 0x40000000


def ip(arguments: str) -> None:
    """Run `ip` in this thread's namespace; skips the test where it refuses."""
    if shutil.which("ip") is None:
        pytest.skip("no ip command")
    done = subprocess.run(["ip", *arguments.split()], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"ip {arguments}: {done.stderr.strip()}")


def enter_own() -> None:
    """Enter a namespace of this thread's own, with a loopback; skips the test where there can be none."""
    if ctypes.CDLL(None).unshare(_CLONE_NEWNET):
        pytest.skip("no network namespaces here")
    ip("link set lo up")


def inside(body: Callable[[], None], enter: Callable[[], None] = enter_own) -> None:
    """Run something in a thread that has entered a namespace, and end with it."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            enter()
            body()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


def over_path(
    impairment: Impairment, serve: Callable[[threading.Event], None], ask: Callable[[], None]
) -> ImpairedPath:
    """Run a client and a server with a path between them; skips the test where there can be none.

    `serve` runs where SERVER is, and ends once the event is set; `ask` where CLIENT is.
    """
    over = threading.Event()
    try:
        with ImpairedPath(impairment) as path:
            serving = threading.Thread(target=inside, args=(lambda: serve(over), path.enter_server))
            serving.start()
            try:
                inside(ask, path.enter_client)
            finally:
                over.set()
                serving.join(10)
            return path
    except CouldNotRun as error:
        pytest.skip(str(error))
