"""A run in virtual time: every request and every scrape goes to a virtual server, and nothing waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import pytest

from fakes.scripted_server import Answer, Asked
from fakes.virtual_loop import VirtualLoop
from fakes.virtual_network import Connection, VirtualServer
from loadgen.features.ring import ring_choice
from loadgen.host import environment
from loadgen.host.cpu_use import CpuUse
from loadgen.run import attach, measurement, reached_server, session
from loadgen.server import scraper
from loadgen.server.exchange import ControlLoop
from loadgen.server.prometheus import SAMPLED
from loadgen.server.scraper import MetricsScraper
from loadgen.transport.capture import Capture, CaptureFault, Counters, Health, Outbox, open_pair
from loadgen.transport.capture_process import CaptureRun, describe_fault
from loadgen.transport.sending.job import Job

BASE_URL = VirtualServer(lambda asked: Answer([])).base_url
_SCRAPE = b"GET %s HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"
_LARGEST_BYTES = 1 << 20


def run_on(server: VirtualServer, patch: pytest.MonkeyPatch) -> None:
    """Have every run of this process take place on a virtual server's network and clock."""
    patch.setattr(measurement, "start_capture", partial(_started, server))
    patch.setattr(attach, "ControlLoop", partial(ControlLoop, new_loop=lambda: VirtualLoop(server)))
    patch.setattr(reached_server, "find_local", lambda access: None)  # no process here is the server
    patch.setattr(session, "make_cpu_watch", lambda *_, **__: _QuietCpus())
    patch.setattr(ring_choice, "explain_refusal", lambda: "")  # a virtual ring needs no capability
    patch.setattr(attach, "start_git", lambda: nullcontext(str))  # which starts a process, as this does
    patch.setattr(environment, "read_throttling_state", environment.ThrottlingState)
    patch.setattr(MetricsScraper, "sampling", lambda observer: _sampling(server, observer))


class _QuietCpus:
    """The CPUs of a machine on which nothing else runs."""

    use = CpuUse(duration_s=3.0, cpus=2, server=1.0, client=0.1, others=0.02, waiting=0.0)

    def sampling(self) -> AbstractContextManager[None]:
        return nullcontext()


@contextmanager
def serving(script: Callable[[Asked], Answer]) -> Iterator[VirtualServer]:
    """A virtual server that plays a script, on which every run takes place meanwhile."""
    server = VirtualServer(script)
    with pytest.MonkeyPatch.context() as patch:
        run_on(server, patch)
        yield server


class _ThreadRun(CaptureRun):
    """A job that a thread sends in virtual time, from when its captures are awaited."""

    def __init__(self, job: Job, inbox: object, send: Callable[[], None]) -> None:
        super().__init__(0, inbox, Counters(), job.order)  # type: ignore[arg-type]
        self.thread = threading.Thread(target=send, daemon=True)

    def captures(self, also: int = -1) -> Iterator[Capture | None]:
        """Captures as they finish; the thread is over when the last has come."""
        self.thread.start()
        while not self.inbox.closed:
            for message in self.inbox.messages():
                if isinstance(message, Health):
                    self.health = message
                elif isinstance(message, CaptureFault):
                    self.died = message.reason
                else:
                    yield message
            yield None
        self.inbox.sock.close()
        self.thread.join()


def _started(server: VirtualServer, job: Job, transport: str) -> CaptureRun:
    outbox, inbox = open_pair()
    run = _ThreadRun(job, inbox, lambda: _send(server, job, transport, outbox, run.counters))
    return run


def _send(server: VirtualServer, job: Job, transport: str, outbox: Outbox, counters: Counters) -> None:
    try:
        last: Health | CaptureFault = server.transport(transport)(job, outbox, counters).run()
    except Exception as error:
        last = CaptureFault(describe_fault(error))
    outbox.finish(last)


@contextmanager
def _sampling(server: VirtualServer, observer: MetricsScraper) -> Iterator[None]:
    """Sample the gauges as often as the scraper does, in virtual time."""
    began_ns = observer.began_ns = server.time.ns
    over = threading.Event()

    def scrape() -> None:
        if not over.is_set():
            _scrape(server, observer.path, lambda status, body: keep(status, body))

    def keep(status: int, body: bytes) -> None:
        lines = observer._read_answer(status, body, SAMPLED)
        observer.samples.append(((server.time.ns - began_ns) / 1e9, lines))
        server.time.after(int(scraper._EVERY_S * 1e9), scrape)

    if not observer.began.error:
        server.time.after(int(scraper._FIRST_S * 1e9), scrape)
    try:
        yield
    finally:
        over.set()


def _scrape(server: VirtualServer, path: str, answered: Callable[[int, bytes], None]) -> None:
    """Request the metrics on a connection of its own; their status and body, once they are there."""
    received = bytearray()

    def connected(connection: Connection) -> None:
        connection.on_change = partial(receive, connection)
        connection.write(_SCRAPE % path.encode())

    def receive(connection: Connection) -> None:
        while connection.unread:
            received.extend(connection.read(_LARGEST_BYTES)[0])
        head, _, body = bytes(received).partition(b"\r\n\r\n")
        if b"content-length: %d\r\n" % len(body) in head + b"\r\n":
            connection.close()
            answered(int(head.split()[1]), body)

    server.connect(connected)
