"""The pipe: whole messages in order, however they are cut, and never a blocked sender."""

from __future__ import annotations

import socket
from functools import partial

from msgspec.structs import replace

from builders.loops import loop_over
from loadgen.transport.capture import Capture, Health, Inbox, Message, open_pair, pack_int64s
from loadgen.transport.failure import Failure, FailureKind

HEALTH = Health(started_ns=1, ended_ns=2, cpu_ns=3, clock_step_ns=4, late_bodies=5, backlog_bytes=6)


def capture(index: int, size: int = 10) -> Capture:
    return Capture(
        index=index,
        slot=index % 3,
        intended_ns=2**62,
        sent_ns=-1,
        end_ns=7,
        raw=bytes([index % 256]) * (size - 1) + b".",
        read_lengths=pack_int64s([size - 1, 1]),
        failure=Failure(FailureKind.STALL, "é") if index % 2 else None,
    )


def drained(inbox: Inbox) -> list[Message]:
    found: list[Message] = []
    while not inbox.closed:
        found += inbox.messages()
    inbox.sock.close()
    return found


def test_all_that_waits_is_given_its_bytes_once_and_in_its_order() -> None:
    outbox, inbox = open_pair()
    given: list[int] = []
    for i in range(4):
        outbox.put(capture(i), 10, partial(given.append, i), at_once=i == 2)
    assert (given, outbox.waiting_bytes) == ([2], 40)
    outbox.fill()
    outbox.fill()
    assert (given, outbox.waiting_bytes) == ([2, 0, 1, 3], 40)
    outbox.finish(HEALTH)
    assert given == [2, 0, 1, 3]
    assert drained(inbox) == [*map(capture, range(4)), HEALTH]


def test_reads_are_joined_when_the_pipe_is_given_them_and_not_before() -> None:
    outbox, inbox = open_pair()
    bare = Capture(index=0, slot=0, intended_ns=1, sent_ns=2, end_ns=3)
    filled = replace(
        bare,
        raw=b"onethree",
        read_lengths=pack_int64s([3, 5]),
        seen_ns=pack_int64s([11, 12]),
        kernel=b"k" * 16 + b"K" * 16,
    )
    reads = [b"one", b"k" * 16, 11, b"three", b"K" * 16, 12]
    outbox.put(bare, 8, partial(bare.fill, reads))
    assert (bare.raw, outbox.waiting_bytes, outbox.most_bytes) == (b"", 8, 8)
    assert outbox.flush_some()
    assert outbox.waiting_bytes == 0
    outbox.finish(HEALTH)
    assert drained(inbox) == [filled, HEALTH]


@loop_over("cut", [1, 7, 8, 9, 50])
def test_messages_cut_anywhere_are_put_together(cut: int) -> None:
    outbox, inbox = open_pair()
    sent = [capture(i) for i in range(3)]
    for each in sent:
        outbox.put(each)
    outbox.finish(HEALTH)
    data = b"".join(iter(lambda: inbox.sock.recv(1 << 20), b""))
    inbox.sock.close()
    ours, theirs = socket.socketpair()
    again = Inbox(theirs)
    found: list[Message] = []
    for begin in range(0, len(data), cut):
        ours.sendall(data[begin : begin + cut])
        found += again.messages()
    ours.close()
    assert [*found, *drained(again)] == [*sent, HEALTH]


def test_a_full_pipe_blocks_nobody_and_loses_nothing() -> None:
    outbox, inbox = open_pair()
    sent = [capture(i, 1 << 20) for i in range(30)]
    for each in sent:
        outbox.put(each)
    assert outbox.waiting_bytes == outbox.most_bytes == 30 << 20
    while outbox.flush_some():
        pass
    assert outbox.blocked
    assert 0 < outbox.waiting_bytes < 30 << 20
    found: list[Message] = []
    while len(found) < 30:
        found += inbox.messages()
        while outbox.flush_some():
            pass
    assert found == sent
    assert not outbox.blocked
    assert (outbox.waiting_bytes, outbox.most_bytes) == (0, 30 << 20)
    outbox.finish(HEALTH)
    assert drained(inbox) == [HEALTH]


def test_a_reader_that_is_gone_with_something_unread_means_stop() -> None:
    outbox, inbox = open_pair()
    outbox.put(capture(0))
    outbox.flush_some()
    inbox.sock.close()
    assert outbox.stop_asked
    outbox.sock.close()


def test_a_message_cut_by_the_senders_death_is_left_out() -> None:
    outbox, inbox = open_pair()
    outbox.put(capture(0))
    outbox.flush_some()
    outbox.sock.send(b"\xff\0\0\0\0\0\0\0abc")
    outbox.sock.close()
    assert drained(inbox) == [capture(0)]
