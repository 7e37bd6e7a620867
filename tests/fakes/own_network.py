"""A network of a test's own: threads in network namespaces, whose links harm no one else."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

import pytest

from benchmarks.harness.impaired_path import ImpairedPath, Impairment
from benchmarks.harness.process import CouldNotRun

_CLONE_NEWNET = 0x40000000
FAR = "10.77.0.2"  # where the server is that a client reaches over a link


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


def over_link(server: AbstractContextManager[object], ask: Callable[[], None], vlan: bool = False) -> None:
    """Run a client and a server that listens at FAR, each in a namespace of its own, with a link between."""
    whose, (entered, made, up, over) = list[int](), [threading.Event() for _ in range(4)]

    def link(end: str, address: str) -> None:
        name = f"{end}.5" if vlan else end
        ip(f"link set {end} up")
        if vlan:
            ip(f"link add link {end} name {name} type vlan id 5")
            ip(f"link set {name} up")
        ip(f"addr add {address}/24 dev {name}")

    def serve() -> None:
        whose.append(threading.get_native_id())
        entered.set()
        made.wait(10)
        link("far", FAR)
        with server:
            up.set()
            over.wait(20)

    def client() -> None:
        entered.wait(10)
        ip("link add name near type veth peer name far")
        ip(f"link set far netns {whose[0]}")
        link("near", "10.77.0.1")
        made.set()
        assert up.wait(10)
        ask()

    def serve_quietly() -> None:
        with suppress(BaseException):  # what fails or is skipped here shows at the client
            inside(serve)

    other = threading.Thread(target=serve_quietly)
    other.start()
    try:
        inside(client)
    finally:
        made.set()
        over.set()
        other.join()


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
