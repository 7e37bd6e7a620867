"""Pool: the wire transport's connections, dialed without blocking."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
from collections import deque
from collections.abc import Callable

from loadgen.transport.epoll.connection import READ_BYTES, ReadBuffer, Slot, State, Tls
from loadgen.transport.network import Network
from loadgen.transport.sending.job import Job

RECV, SEND = select.EPOLLIN, select.EPOLLOUT
_EDGE = RECV | select.EPOLLET | select.EPOLLRDHUP


class Pool:
    """Slots and their sockets; `on_open` is called with each that became ready for requests.

    A connection that cannot be made waits in `failed` with its error: it is for the owner of the
    requests to decide what that means, and from there a slot may be dialed again without recursion.
    """

    def __init__(self, job: Job, network: Network, on_open: Callable[[Slot], None]) -> None:
        self.target, self.share, self.network, self.on_open = job.target, job.share, network, on_open
        # Reporting each arrival once, the kernel need not check every stream again that was just read. TLS
        # reads hide how much was there, so those are reported for as long as something is.
        self.arrivals = _EDGE if job.target.tls is None else RECV
        self.poll = network.poller()
        self.slots: list[Slot] = []
        self.by_fd: list[ReadBuffer | None] = []  # None: not a slot's
        self.free: deque[Slot] = deque()
        self.failed: deque[tuple[Slot, Exception]] = deque()
        self.dialing = 0

    def open(self) -> None:
        """Add a slot and dial for it."""
        position = len(self.slots)
        slot = Slot(self.share.number_slot(position), self.target.choose_source(position + self.share.number))
        self.slots.append(slot)
        self.dial(slot)

    def dial(self, slot: Slot) -> None:
        """Connect a closed slot."""
        slot.retry_ns = 0
        self.dialing += 1
        try:
            slot.dial(self.target, self.network)
        except OSError as error:
            self.refuse(slot, error)
            return
        self.watch(slot.fd, SEND, slot.intake)

    def watch(self, fd: int, events: int, intake: ReadBuffer | None = None) -> None:
        """Have the epoll report a file that it did not know."""
        self.by_fd += [None] * (fd + 1 - len(self.by_fd))
        self.by_fd[fd] = intake
        self.poll.register(fd, events)

    def note_connected(self, slot: Slot) -> None:
        """The socket is connected, or was refused; TLS comes next where it is asked for."""
        assert slot.sock is not None
        code = slot.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self.refuse(slot, OSError(code, f"cannot connect to {self.target.authority}"))
        elif self.target.tls is None:
            self.look_again(slot)
            self._note_open(slot)
        else:
            slot.tls = Tls(slot.sock, self.target.tls, self.target.host)
            slot.intake.receive, slot.intake.state = slot.tls.recvmsg, State.HANDSHAKING
            slot.pending = memoryview(slot.tls.handshake(b"")[1])
            if error := self.write(slot):
                self.refuse(slot, error)

    def write(self, slot: Slot) -> OSError | None:
        """Write what is pending and watch for room while some remains; the error that broke it."""
        assert slot.sock is not None
        try:
            slot.pending = slot.pending[slot.sock.send(slot.pending) :]
        except BlockingIOError:
            pass
        except OSError as error:
            return error
        if not (slot.pending or self.target.delay_acks):
            slot.quicken_acks()
        self.look_again(slot)
        return None

    def look_again(self, slot: Slot) -> None:
        """Have the epoll report a slot's readiness again, reported before or not, and then what comes."""
        self.poll.modify(slot.fd, self.arrivals | SEND if slot.pending else self.arrivals)

    def drop(self, slot: Slot) -> None:
        """Close a slot's connection."""
        if slot.intake.state is State.IDLE:
            with contextlib.suppress(ValueError):
                self.free.remove(slot)
        if 0 <= slot.fd < len(self.by_fd):  # or it was never watched
            self.by_fd[slot.fd] = None
            with contextlib.suppress(OSError):
                self.poll.unregister(slot.fd)
        slot.close()

    def close(self) -> None:
        """Close every connection."""
        for slot in self.slots:
            self.drop(slot)
        self.poll.close()

    def handshake(self, slot: Slot) -> None:
        """Take the next step of a TLS handshake: the peer's bytes have come."""
        assert slot.sock is not None
        assert slot.tls is not None
        try:
            data = slot.sock.recv(READ_BYTES)
            if not data:
                raise ConnectionError("closed during the TLS handshake")
            done, answer = slot.tls.handshake(data)
        except BlockingIOError:
            return
        except (OSError, ssl.SSLError) as error:
            self.refuse(slot, error)
            return
        slot.pending = memoryview(bytes(slot.pending) + answer)
        if slot.pending and (error_now := self.write(slot)):
            self.refuse(slot, error_now)
        elif done:
            self._note_open(slot)

    def _note_open(self, slot: Slot) -> None:
        self.dialing -= 1
        slot.intake.state, slot.connected_ns = State.IDLE, self.network.now_ns()
        slot.connect_ns = slot.connected_ns - slot.connect_begin_ns
        self.on_open(slot)

    def refuse(self, slot: Slot, error: Exception) -> None:
        """Note that a slot's connection could not be made."""
        self.dialing -= 1
        self.drop(slot)
        self.failed.append((slot, error))
