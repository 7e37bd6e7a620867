"""Epoll transport (`wire`): raw sockets, one epoll, the kernel's receive timestamps.

The hot path is `EpollTransport._read_ready`: read, timestamp, append. What is neither reading nor sending
waits until the epoll reports nothing, where it cannot delay another stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from loadgen.base.clock import SECOND_NS, WallOffset
from loadgen.transport.capture import A_READ, KEPT_READS, NO_STAMP, Counters, Health, Outbox
from loadgen.transport.deadlines import Deadlines, fail_unanswered, is_closed_while_idle
from loadgen.transport.failure import CANCELLED, USER_CANCELLED, Failure, FailureKind, fail_unconnected
from loadgen.transport.memory_room import MemoryGauge
from loadgen.transport.network import Network, SystemNetwork
from loadgen.transport.sending.gate import Cancelling
from loadgen.transport.sending.job import Job, wait_for_start
from loadgen.transport.sending.sender import Outgoing, Sender, make_sender
from loadgen.transport.tcp_connection import (
    DIALING,
    MOST_READ_BYTES,
    READ_BYTES,
    RECV,
    SEND,
    UNPUSHED_BYTES,
    Pool,
    ReadBuffer,
    Slot,
    State,
)
from loadgen.wire.http1 import LONGEST_TAIL

_ANCILLARY_BYTES = 64
_MOST_BACKLOG_BYTES = 32 << 20  # beyond this the decoder is fed even without idle time
_MOST_EVENTS = 1024  # of one poll
_MOST_JOINED = 8  # ends of one poll whose reads are joined at once, while the processor's cache has them
_SWEEP_NS = 100_000_000
_CHECKS = 8  # of memory, while as much as there is for answers comes in full reads
_LATE_NS, _HURRIED = 200_000_000, 8  # a capture waited so long: it is not in the journal; given at once then
_BUSY = State.BUSY
# The client gave these up, not the server.
_GIVEN_UP = (FailureKind.TIMEOUT, FailureKind.STALL, FailureKind.USER_CANCELLED)


class EpollTransport:
    """Sends a job's requests over plain or TLS sockets in one epoll loop; the default transport."""

    def __init__(self, job: Job, outbox: Outbox, counters: Counters, network: Network | None = None) -> None:
        self.job, self.outbox, self.counters = job, outbox, counters
        self.network = network or SystemNetwork()
        self.now_ns = self.network.now_ns
        self.pool = Pool(job, self.network, self._note_open)
        self.pool.watch(outbox.sock.fileno(), RECV)
        self.ended = self.reads = self.joined = 0  # reads: of what ended; joined: in this poll
        self.out: Outgoing
        self.sender: Sender
        self.out, self.sender = (
            make_sender(job, self.pool, counters, self._send)
            if job.sessions is None
            else job.sessions.make_turns_and_sender(job, self.pool, counters, self._send)
        )
        self.swept_ns = self.now_ns()
        self.wall, self.pacing = WallOffset(self.network), PollPacing()
        self.deadlines = Deadlines(job, self._under_way, self.now_ns)
        self.first_reads = job.limits.answer_bytes // MOST_READ_BYTES  # of fewer, no answer is too long
        self.gauge = MemoryGauge(job.limits.open_bytes // 2)  # half: reads take more than their bytes
        self.full_bytes = 0  # of reads that were full, since memory was last looked at
        self.stopping = self.hurried = False
        # Bytes of a read that adds to a response: a larger one may need an ACK, or be incomplete.
        self.most_bytes = READ_BYTES if job.target.delay_acks else UNPUSHED_BYTES

    # The hot path.

    def _read_ready(self, events: Iterable[tuple[int, int]]) -> None:
        """Read what arrived, with its timestamps; the end is found by comparing the last bytes."""
        by_fd, now_ns, busy, most = self.pool.by_fd, self.now_ns, _BUSY, self.most_bytes
        for fd, mask in events:
            intake = by_fd[fd]
            if mask != RECV or intake is None or intake.state is not busy:
                self._attend(fd, intake, mask)
                continue
            receive = intake.receive  # calling an attribute directly would take the slow lookup
            try:
                data, ancillary, _, _ = receive(READ_BYTES, _ANCILLARY_BYTES)
            except BlockingIOError:
                continue
            except OSError as error:
                self._end_lost(intake.slot, error)
                continue
            if not data:
                self._end_lost(intake.slot, None)
                continue
            got = intake.got
            got += (data, ancillary[0][2] if ancillary else NO_STAMP, now_ns())
            if not LONGEST_TAIL <= len(data) < most or data.endswith(intake.tail):
                self._look_for_end(intake.slot)

    def _send(self, slot: Slot) -> None:
        """Write the slot's request, timestamped right before its first byte goes to the kernel."""
        data = slot.request if slot.tls is None else slot.tls.encrypt(slot.request)
        slot.pending = memoryview(data)
        slot.intake.state = _BUSY
        slot.progress_ns = now_ns = self.now_ns()
        slot.sent_ns = slot.sent_ns or now_ns  # sent again: what was lost is part of its time
        slot.inspect_ns = now_ns + self.deadlines.inspect_ns
        slot.most_reads = self.first_reads
        if error := self.pool.write(slot):
            self._end_lost(slot, error)

    # The loop.

    def run(self) -> Health:
        """Send every request and deliver a capture for each; after a stop, for those that were sent."""
        cpu_ns = self.network.cpu_ns()
        for _ in range(self.job.first_slots):
            self.pool.open()
        while self.out.built < self.job.first_slots and self.out.build_ahead():
            pass
        while self.pool.dialing and not self._turn(0.1):
            self._sweep(self.now_ns())
        begin_ns = self.swept_ns = wait_for_start(self.job.start, self.now_ns, self._turn)
        self.sender.begin(begin_ns)
        send_due, cancelling = self.sender.send_due, self.sender.cancelling
        if not self.stopping:
            send_due()
        poll = self.pool.poll.poll
        while self.ended < self.out.count and not self.stopping:
            # Poll before sleeping: often the next event is there, and being woken costs more than a poll.
            events = poll(0, _MOST_EVENTS)
            if not events and not self._housekeep():
                events = poll(self._wait_s(), _MOST_EVENTS)
            self._dispatch(events)
            if cancelling is not None:
                self._cancel(cancelling)
            if self.out.next < self.out.count:
                send_due()
            if self.pacing.seconds and len(events) < ENOUGH and not self._housekeep() and self._wait_s():
                self.network.sleep(self.pacing.seconds)
            if self.now_ns() - self.swept_ns > _SWEEP_NS:  # deadlines hold while the epoll is never idle
                self._sweep(self.now_ns())
            if (self.hurried or self.outbox.waiting_bytes > _MOST_BACKLOG_BYTES) and not self.outbox.blocked:
                self._flush(_HURRIED)
        end_ns = self.now_ns()
        self._close()
        return Health(
            started_ns=begin_ns,
            ended_ns=end_ns,
            cpu_ns=self.network.cpu_ns() - cpu_ns,
            clock_step_ns=self.wall.step_ns,
            late_bodies=self.out.late_bodies,
            backlog_bytes=self.outbox.most_bytes,
            stopped_ns=self.deadlines.stopped_ns,
            reconnects=self.out.reconnects,
            bodies_digest=self.out.bodies_digest(),
        )

    def _dispatch(self, events: list[tuple[int, int]]) -> None:
        """Handle a poll's events and fail what could not connect; without memory, cut the largest answer."""
        self.joined = 0
        try:
            self._read_ready(events)
        except MemoryError:  # what was not read is reported again
            if not self._make_room():
                raise
        while self.pool.failed:
            slot, error = self.pool.failed.popleft()
            if slot.index < 0:
                self.sender.take_unsent(slot)
            if slot.index >= 0:
                self._end(slot, fail_unconnected(error))
            else:
                slot.retry_ns = self.now_ns() + _SWEEP_NS

    def _attend(self, fd: int, intake: ReadBuffer | None, mask: int) -> None:
        """Handle an event other than response bytes: connected, closed, writable, or the outbox's."""
        if intake is None:
            if fd != self.outbox.sock.fileno():
                return  # a connection closed earlier in this batch of events
            if mask & SEND:
                self.outbox.blocked = False
                self.pool.poll.modify(fd, RECV)
            if mask & ~SEND:
                self.stopping = self.outbox.stop_asked
            return
        slot, state = intake.slot, intake.state
        if state is State.CONNECTING:
            self.pool.note_connected(slot)
            return
        sock = slot.sock  # not its number: a connection dialed at once has that again
        if mask & SEND and (error := self.pool.write(slot)):
            (self.pool.refuse if state is State.HANDSHAKING else self._end_lost)(slot, error)
        if mask & ~SEND and slot.sock is sock:
            if state is State.HANDSHAKING:
                self.pool.handshake(slot)
            elif state is State.IDLE:
                self._check_idle(slot)
            else:
                self._read_ready([(fd, RECV)])
            if mask & ~(SEND | RECV) and slot.sock is sock:
                self.pool.look_again(slot)  # the peer's end was reported now, and comes after what was read

    def _wait_s(self) -> float:
        """Return how long the epoll may sleep until the next thing to do, in seconds."""
        wait_ns = min(_SWEEP_NS, self.sender.wait_ns())
        return max(0, wait_ns // 1_000_000) / 1000

    def _housekeep(self) -> bool:
        """Do one small piece of the work that can wait; False if there is none."""
        if self.out.build_ahead():
            return True
        if self.outbox.waiting and not self.outbox.blocked:
            self._flush()
            return True
        return False

    def _flush(self, most: int = 1) -> None:
        """Send up to `most` captures to the decoder; if the pipe is full, watch for room in it."""
        while most and self.outbox.flush_some():
            most -= 1
        if self.outbox.blocked:
            self.pool.poll.modify(self.outbox.sock.fileno(), RECV | SEND)

    def _under_way(self) -> Iterator[Slot]:
        return (slot for slot in self.pool.slots if slot.intake.state is _BUSY)

    def _sweep(self, now_ns: int) -> None:
        """Check clock, deadlines, lengths, memory and long streams; redial; publish counts: each 0.1 s."""
        late_ns, self.swept_ns = now_ns - self.swept_ns - _SWEEP_NS, now_ns
        self.wall.measure()
        if self.deadlines.put_off(late_ns, now_ns):
            for slot in self.pool.slots:
                if slot.intake.state in DIALING:
                    slot.connect_begin_ns += late_ns
            return  # what has arrived is read first
        limits, delay_acks = self.job.limits, self.job.target.delay_acks
        # A request sent before this has waited too long; 0: none has.
        late_ns = now_ns - limits.request_timeout_ns if limits.request_timeout_ns else 0
        busy, reads = 0, self.reads
        for slot in self.pool.slots:
            state = slot.intake.state
            if state is _BUSY:
                busy += 1
                count = len(slot.intake)
                reads += count
                if delay_acks and not slot.acks_delayed and count > 1:
                    slot.delay_acks()
                if slot.sent_ns < late_ns and (failure := self.deadlines.find_timeout(slot, now_ns)):
                    self._end(slot, failure)
                elif count > slot.most_reads and slot.count_bytes(limits.answer_bytes) > limits.answer_bytes:
                    self._cut(slot, limits.refuse_length())
                elif slot.inspect_ns < now_ns:
                    slot.inspect_ns = now_ns + self.deadlines.inspect_ns
                    if slot.is_over(now_ns, self.deadlines.inspect_ns):
                        self._end(slot, None)  # decoding reports what is wrong
                    elif failure := self.deadlines.find_stall(slot, now_ns):
                        self._end(slot, failure)
            elif state in DIALING:
                if now_ns - slot.connect_begin_ns > limits.connect_timeout_ns:
                    late = TimeoutError(f"no connection to {self.job.target.authority} in time")
                    self.pool.refuse(slot, late)
            elif self.sender.begin_ns and 0 < slot.retry_ns < now_ns:
                self._dial_if_needed(slot)
        self._check_room()
        self.pacing.learn(busy, reads, now_ns)
        self.counters.publish(self.out.next, self.ended, reads)
        self.hurried = 0 < self.outbox.oldest_ns < now_ns - _LATE_NS

    def _cut(self, slot: Slot, failure: Failure) -> None:
        """End an answer that is too long as failed, keeping its first bytes only."""
        del slot.intake.got[KEPT_READS * A_READ :]
        self._end(slot, failure)

    def _check_room(self) -> None:
        """Cut the largest answers if undecoded bytes exceed the memory they may use."""
        self.full_bytes, most = 0, self.job.limits.open_bytes
        if most and self.gauge.is_passed():
            self._make_room(most)

    def _make_room(self, most_bytes: int | None = None) -> bool:
        """Cut the largest answers until all hold `most_bytes`, or (None) one; False if none can be cut."""
        held = {slot: slot.held_bytes() for slot in self._under_way() if len(slot.intake) > KEPT_READS}
        total = sum(held.values()) + self.outbox.waiting_bytes
        most = total - 1 if most_bytes is None else most_bytes
        for slot in sorted(held, key=held.__getitem__, reverse=True):
            if total <= most:
                break
            total -= held[slot]
            self._cut(slot, self.job.limits.refuse_for_room(held[slot]))
        return bool(held)

    # Requests.

    def _cancel(self, cancelling: Cancelling) -> None:
        """End the requests that are now to be cancelled as planned."""
        for stream in cancelling.take_due(self.now_ns()):
            assert isinstance(stream, Slot)
            self.pool.dialing -= stream.intake.state in DIALING  # to be sent again
            self._end(stream, USER_CANCELLED)

    def _look_for_end(self, slot: Slot) -> None:
        """Parse the head if it is new; end the request if complete or malformed now, cut it if too long."""
        size = len(slot.intake.list_since(-1)[0])
        if size >= self.most_bytes:
            slot.quicken_acks()
        if size == READ_BYTES:  # there may be more, reported already
            self.pool.look_again(slot)
            slot.full_reads += 1
            self.full_bytes += READ_BYTES
            if slot.full_reads * READ_BYTES > self.job.limits.answer_bytes:  # before a sweep could see it
                self._cut(slot, self.job.limits.refuse_length())
                return
            if self.full_bytes > self.job.limits.open_bytes // _CHECKS > 0:
                self._check_room()
                if slot.intake.state is not _BUSY or not len(slot.intake):
                    return  # it was the largest
        if slot.framing is None:
            over = slot.begin_response(self.job.limits)
            self.pacing.forbidden |= slot.intake.got[-2] == NO_STAMP
        else:
            over = slot.framing.is_done(slot.intake)
        if over:
            self._end(slot, over if isinstance(over, Failure) else None)

    def _end(self, slot: Slot, failure: Failure | None) -> None:
        """Deliver the slot's capture and free the slot; dial it again if not kept, after 1 s if refused."""
        self.wall.check()
        slot.note_losses()
        if failure is None and self.outbox.waiting_bytes > self.job.limits.open_bytes > 0:
            failure = self.job.limits.refuse_for_room(slot.held_bytes())  # the decoder is that far behind
            del slot.intake.got[KEPT_READS * A_READ :]
        # A read that waited for a segment has that one's time, which the kernel does not report.
        clean = failure is None and len(slot.intake) and slot.lost.out_of_order <= 0
        end_ns = slot.intake.last_arrival_ns(self.wall.now_ns, slot.sent_ns) if clean else self.now_ns()
        self.joined += 1
        self._deliver(slot, failure, end_ns)
        self.ended += 1
        self.reads += len(slot.intake)
        slot.freed_ns = end_ns
        self.sender.note_ended(slot, failure, end_ns)
        # A fresh connection that is lost without a byte is refused in all but name.
        lost = not (len(slot.intake) or slot.served or (failure is not None and failure.kind in _GIVEN_UP))
        refused = lost or (failure is not None and failure.kind is FailureKind.CONNECT)
        # Half a request is still to go, or what came was no HTTP.
        broken = slot.pending or (slot.framing is not None and slot.framing.broken)
        keep = slot.keep_alive and failure is None and not broken
        slot.clear()
        if failure is None:
            self.deadlines.token_ns = end_ns
        if keep:
            slot.served += 1
            self._make_free(slot)
            return
        self.pool.drop(slot)
        if refused and (self.job.duration_ns or self.deadlines.token_ns or any(self._under_way())):
            # The server did answer, or there is time: do not burn the plan's requests while it is away.
            slot.retry_ns = self.now_ns() + SECOND_NS
        else:
            self._dial_if_needed(slot)

    def _deliver(self, slot: Slot, failure: Failure | None, end_ns: int) -> None:
        """Put the capture of a slot's request into the outbox."""
        capture, got = slot.capture(failure, end_ns, self.wall), slot.intake.got
        size = sum(map(len, got[::A_READ]))
        self.outbox.put(capture, size, partial(capture.fill, got), at_once=self.joined <= _MOST_JOINED)

    # Connections.

    def _turn(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` seconds for events and handle those; return whether to stop."""
        self._dispatch(self.pool.poll.poll(timeout_s, _MOST_EVENTS))
        return self.stopping

    def _note_open(self, slot: Slot) -> None:
        """Send the request that waits for this connection; make the slot free if none does."""
        if slot.index < 0:
            self._make_free(slot)
            return
        self._send(slot)  # a request that waited for it, or is sent again
        if not slot.resends:
            self.sender.note_sent(slot)

    def _make_free(self, slot: Slot) -> None:
        slot.intake.state = State.IDLE
        self.sender.take_free(slot)

    def _check_idle(self, slot: Slot) -> None:
        """Drop an idle connection that was closed or sent bytes (a 408) unasked, but for TLS's own."""
        try:
            slot.intake.receive(READ_BYTES, _ANCILLARY_BYTES)
        except BlockingIOError:
            return  # TLS talking to itself: a session ticket
        except OSError:
            pass
        self._drop_idle(slot)

    def _drop_idle(self, slot: Slot) -> None:
        """Close an idle connection and dial it again: now, or after 0.1 s if it never served a request."""
        self.pool.drop(slot)
        if slot.served:
            self._dial_if_needed(slot)
        else:  # a server that only accepts and closes is not asked again in a tight loop
            slot.retry_ns = self.now_ns() + _SWEEP_NS

    def _dial_if_needed(self, slot: Slot) -> None:
        """Dial a closed slot if requests are left for it, or set `retry_ns` to when they will need it."""
        at_ns, now_ns = self.sender.redial_ns(slot), self.now_ns()
        if at_ns > now_ns:
            slot.retry_ns = at_ns
        elif at_ns and not self.stopping:
            self.pool.dial(slot)

    def _end_lost(self, slot: Slot, error: Exception | None) -> None:
        """End the request of a lost connection, or send it once more if the server closed it while idle."""
        if slot.intake.state is State.IDLE:
            self._drop_idle(slot)
            return
        now_ns, came = self.now_ns(), len(slot.intake)
        if not came and slot.served and not slot.resends and is_closed_while_idle(slot, now_ns):
            self.pool.drop(slot)
            slot.resends = 1
            self.pool.dial(slot)
            return
        slot.keep_alive = False
        cut = Failure(FailureKind.TRUNCATED, str(error)) if error else None
        self._end(slot, cut if came else fail_unanswered(slot, now_ns, error))

    def _close(self) -> None:
        """Deliver what was in flight when the run was stopped, and close all connections."""
        for slot in self.pool.slots:
            if slot.index >= 0:
                slot.note_losses()
                self._deliver(slot, CANCELLED, self.now_ns())
        self.counters.publish(self.out.next, self.ended, self.reads)
        self.pool.close()
        self.gauge.close()


_SHARE = 50  # of the mean gap between a stream's reads: a rest makes few of them meet, and none late by much
ENOUGH = 8  # reads: fewer are not worth a rest's two switches between processes
_SHORTEST_S, _LONGEST_S = 0.00005, 0.0002  # the kernel wakes a sleeper up to 50 µs late


class PollPacing:
    """Chooses how long to sleep between two polls; not at all with few streams.

    What arrives meanwhile has the kernel's timestamp. Where the kernel gives none, there is no pause; nor
    after a poll that found ENOUGH reads: no pause while the loop is behind.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.forbidden = False
        self._reads = self._at_ns = 0

    def learn(self, streams: int, reads: int, now_ns: int) -> None:
        """Update the pause from the streams in flight and all reads so far; call it a few times a second."""
        gathered = streams / _SHARE  # reads, in the rest that this is about to choose
        added, passed_s = reads - self._reads, (now_ns - self._at_ns) / 1e9
        self._reads, self._at_ns = reads, now_ns
        worthwhile = gathered >= ENOUGH and added > 0 and not self.forbidden
        rest_s = gathered * passed_s / added if worthwhile else 0.0
        self.seconds = min(rest_s, _LONGEST_S) if rest_s >= _SHORTEST_S else 0.0
