"""The packet filter, run by an interpreter of the kernel's instructions on packets built here."""

from __future__ import annotations

import ctypes
import errno
import socket
import struct
from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.loops import loop_over, loop_over_named
from fakes.packet_filters import ACK, FIN, SYN, packet, passed
from loadgen.features.ring.packet_filter import HEADERS, MOST_RANGES, build_program

RST, PUSH = 0x04, 0x08
V4, V6 = socket.AF_INET, socket.AF_INET6
Family = socket.AddressFamily
US: dict[Family, str] = {V4: "127.0.0.1", V6: "2001:db8::5"}
SERVERS: dict[Family, list[tuple[str, int]]] = {
    V4: [("10.1.2.3", 8000), ("10.1.2.3", 9000), ("10.1.2.4", 8000)],
    V6: [("2001:db8::1", 8000), ("2001:db8::1", 9000), ("2001:db8:0:1::1", 8000)],
}
PORTS = [range(40000, 40010)]
PORT = 40005
DROPPED, ORDINARY, MARKED = "dropped", "ordinary", "marked"
# Bytes kept of IPv4 and TCP; of IPv6 the header is 20 bytes longer. The second ones: with timestamps.
KEPT = {0: DROPPED, 35: ORDINARY, 51: ORDINARY, 40: MARKED, 52: MARKED}
LONGER: dict[Family, int] = {V4: 0, V6: 20}
both = pytest.mark.parametrize("family", [V4, V6], ids=["IPv4", "IPv6"])


@cache
def ours(family: Family, servers: int = 3) -> bytes:
    return build_program(family, SERVERS[family][:servers], US[family], PORTS)


def kept(data: bytes, family: Family = V4, length: int = 0, servers: int = 3) -> str:
    """What is kept of a packet."""
    found = passed(ours(family, servers), data, length)
    return KEPT[found and found - LONGER[family]]


def with_ip(data: bytes, at: int, value: int) -> bytes:
    """A packet with another half word in its IP header."""
    return data[:at] + struct.pack(">H", value) + data[at + 2 :]


# Which segments pass.


@both
@loop_over_named(
    ("source", "to"),
    {
        "another port of the server": ((0, 7999), (US, PORT)),
        "a server's address with the port of another": ((2, 9000), (US, PORT)),
        "another address": ((None, 8000), (US, PORT)),
        "another address of this machine": ((0, 8000), (None, PORT)),
        "the port below": ((0, 8000), (US, 39999)),
        "the port above": ((0, 8000), (US, 40010)),
        "the other direction's ports": ((0, PORT), (US, 8000)),
    },
)
def test_what_is_not_ours_is_dropped(
    family: Family, source: tuple[int | None, int], to: tuple[dict[Family, str] | None, int]
) -> None:
    elsewhere = "10.1.2.5" if family == V4 else "2001:db8::2"
    from_host = elsewhere if source[0] is None else SERVERS[family][source[0]][0]
    to_host = elsewhere if to[0] is None else to[0][family]
    for payload, flags in ((b"data: token", ACK), (b"0\r\n\r\n", ACK), (b"", SYN | ACK)):
        assert kept(packet((from_host, source[1]), (to_host, to[1]), payload, flags=flags), family) == DROPPED


@both
def test_every_byte_of_an_address_is_compared(family: Family) -> None:
    data = packet(SERVERS[family][0], (US[family], PORT), b"data: token")
    headers = HEADERS[family]
    size = headers.destination - headers.source
    for at in range(headers.source, headers.destination + size):
        other = data[:at] + bytes([data[at] ^ 0x80]) + data[at + 1 :]
        assert kept(other, family, servers=1) == DROPPED


@given(st.sets(st.integers(1, 400), max_size=80))
def test_exactly_the_ports_of_a_set_pass(wanted: set[int]) -> None:
    ranges: list[range] = []
    for port in sorted(wanted):
        if ranges and ranges[-1].stop == port:
            ranges[-1] = range(ranges[-1].start, port + 1)
        else:
            ranges.append(range(port, port + 1))
    code = build_program(V4, SERVERS[V4][:1], US[V4], ranges)
    to = (packet(SERVERS[V4][0], (US[V4], port), b"data: token") for port in range(402))
    assert {port for port, data in enumerate(to) if passed(code, data)} == wanted


# Of what is ours: what is kept, what is marked, what says nothing.


@both
@loop_over("options", [0, 12, 40])
@loop_over_named(
    ("payload", "flags", "found"),
    {
        "an acknowledgement": (b"", ACK, DROPPED),
        "a pure FIN": (b"", FIN | ACK, DROPPED),
        "a pure RST": (b"", RST, DROPPED),
        "a SYN": (b"", SYN | ACK, MARKED),
        "one byte": (b"x", ACK, MARKED),
        "three bytes": (b"abc", ACK, MARKED),
        "four bytes": (b"abcd", ACK, ORDINARY),
        "four bytes that end": (b"\r\n\r\n", ACK, MARKED),
        "the last chunk": (b"0\r\n\r\n", ACK | PUSH, MARKED),
        "the end mark and one more": (b"data: x\r\n\r\n\r", ACK, ORDINARY),
        "the end mark first": (b"\r\n\r\ndata", ACK, ORDINARY),
        "the end mark shifted": (b"data: x\n\r\n\r", ACK, ORDINARY),
        "a full segment": (b"x" * 1400, ACK | PUSH, ORDINARY),
        "a full one that ends, with a FIN": (b"x" * 1396 + b"\r\n\r\n", FIN | ACK, MARKED),
        "bytes with a FIN": (b"data: x", FIN | ACK, ORDINARY),
        "a head and more": (b"HTTP/1.1 200 OK\r\nserver: x\r\n\r\ndata", ACK, MARKED),
        "four bytes of a head": (b"HTTP", ACK, MARKED),
        "a head's begin elsewhere": (b"data: HTTP", ACK, ORDINARY),
    },
)
def test_how_much_is_kept_says_what_a_segment_is(
    family: Family, options: int, payload: bytes, flags: int, found: str
) -> None:
    data = packet(SERVERS[family][0], (US[family], PORT), payload, 7, flags, options)
    assert kept(data, family) == found


@both
@given(
    payload=st.binary(max_size=40),
    end=st.sampled_from([b"", b"\r\n\r\n", b"\r\n", b"\n\r\n"]),
    options=st.sampled_from([0, 4, 8, 12, 40]),
)
def test_no_byte_of_payload_is_ever_kept(family: Family, payload: bytes, end: bytes, options: int) -> None:
    data = packet(SERVERS[family][0], (US[family], PORT), payload + end, options=options)
    found, whole = kept(data, family), payload + end
    ends = len(whole) < 4 or whole.endswith(b"\r\n\r\n") or whole.startswith(b"HTTP")
    assert found == (DROPPED if not whole else MARKED if ends else ORDINARY)
    assert passed(ours(family), data) <= len(data) - len(whole)


@both
@loop_over(("options", "sizes"), [(0, (15, 20)), (8, (15, 20)), (12, (31, 32)), (40, (31, 32))])
def test_timestamps_are_kept_where_a_header_has_room(
    family: Family, options: int, sizes: tuple[int, int]
) -> None:
    for payload, size in zip((b"data: token", b"0\r\n\r\n"), sizes, strict=True):
        data = packet(SERVERS[family][0], (US[family], PORT), payload, options=options)
        assert passed(ours(family), data) == HEADERS[family].size + size


@pytest.mark.parametrize(
    ("payload", "flags", "found"), [(b"", ACK, DROPPED), (b"a", ACK, MARKED), (b"", SYN, MARKED)]
)
def test_padding_after_a_short_packet_is_no_payload(payload: bytes, flags: int, found: str) -> None:
    data = packet(SERVERS[V4][0], (US[V4], PORT), payload, flags=flags, options=0)
    assert kept(data + b"\0" * (46 - len(data))) == found


@both
@pytest.mark.parametrize(
    ("end", "found"), [(b"\r\n\r\n", MARKED), (b"data", ORDINARY)], ids=["an end", "none"]
)
def test_a_length_of_zero_is_one_too_long_for_its_field(family: Family, end: bytes, found: str) -> None:
    data = packet(SERVERS[family][0], (US[family], PORT), b"x" * 1000 + end)
    headers = HEADERS[family]
    assert kept(with_ip(data, headers.length, 0), family) == found


@loop_over_named(
    ("at", "value", "found"),
    {
        "a fragment in the middle": (6, 0x2001, DROPPED),
        "the last fragment": (6, 0x0001, DROPPED),
        "a fragment far along": (6, 0x1000, DROPPED),
        "may not be fragmented": (6, 0x4000, ORDINARY),
        "may be fragmented": (6, 0, ORDINARY),
        "UDP": (8, 64 << 8 | 17, DROPPED),
        "ICMP": (8, 64 << 8 | 1, DROPPED),
        "IP options": (0, 0x4600, DROPPED),
        "of another version": (0, 0x6500, DROPPED),
    },
)
def test_no_ipv4_packet_that_is_no_plain_segment_passes(at: int, value: int, found: str) -> None:
    data = packet(SERVERS[V4][0], (US[V4], PORT), b"data: token")
    assert kept(with_ip(data, at, value)) == found


@loop_over("kind", [0, 17, 44, 58, 60])
def test_no_ipv6_packet_that_is_no_plain_segment_passes(kind: int) -> None:
    data = packet(SERVERS[V6][0], (US[V6], PORT), b"data: token")
    assert kept(with_ip(data, 6, kind << 8 | 64), V6) == DROPPED
    assert kept(b"\x45" + data[1:], V6) == DROPPED
    assert kept(b"\x6f\xff" + data[2:], V6) == ORDINARY  # traffic class


@both
def test_a_packet_cut_anywhere_is_dropped_or_kept_within_headers(family: Family) -> None:
    data = packet(SERVERS[family][0], (US[family], PORT), b"data: x\r\n\r\n", options=0)
    payload_at = len(data) - 11
    assert all(passed(ours(family), data[:size]) <= payload_at for size in range(len(data)))
    assert {passed(ours(family), data[:size]) for size in range(payload_at - 7)} == {0}


# The program as the kernel sees it.

# Ranges of one port, of three, and of two that only one port divides.
SPACED = [range(1024 + 100 * i, 1024 + 100 * i + 1 + 2 * (i % 2)) for i in range(7)]
PROGRAMS: list[tuple[Family, int, Sequence[range]]] = [
    (family, servers, ranges)
    for family in (V4, V6)
    for servers, ranges in (
        (1, []),
        (1, PORTS),
        (3, SPACED),
        (3, [range(1 + 2 * i, 2 + 2 * i) for i in range(MOST_RANGES)]),
        (1, [range(65000 - 3 * i, 65002 - 3 * i) for i in reversed(range(MOST_RANGES))]),
    )
]


@pytest.mark.parametrize(("family", "servers", "ranges"), PROGRAMS)
def test_the_kernel_takes_every_program(family: Family, servers: int, ranges: Sequence[range]) -> None:
    code = build_program(family, SERVERS[family][:servers], US[family], ranges)
    held = ctypes.create_string_buffer(code, len(code))
    filtering = struct.pack("HL", len(code) // 8, ctypes.addressof(held))
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            sock.setsockopt(socket.SOL_SOCKET, 26, filtering)
        except OSError as error:
            if error.errno in (errno.ENOPROTOOPT, errno.EPERM):
                pytest.skip(f"no filters here: {error.strerror}")
            raise
