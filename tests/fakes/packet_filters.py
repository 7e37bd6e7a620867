"""Packets as bytes, and what the kernel does with a classic BPF program: one instruction after another."""

from __future__ import annotations

import operator
import socket
import struct
from collections.abc import Callable

SYN, ACK, FIN = 0x02, 0x10, 0x01
_WIDTHS = {0x20: 4, 0x28: 2, 0x30: 1}
_COMPARE: dict[int, Callable[[int, int], bool]] = {
    0x15: operator.eq,
    0x25: operator.gt,
    0x35: operator.ge,
    0x45: lambda a, k: bool(a & k),
}


def passed(program: bytes, packet: bytes, length: int = 0) -> int:
    """How many bytes of a packet the program keeps; `length` is the packet's own where it has more."""
    lines = list(struct.iter_unpack("HBBI", program))
    a = x = at = 0
    memory = [0] * 16
    while True:
        code, then, otherwise, k = lines[at]
        at += 1
        if code in _WIDTHS:
            end = k + _WIDTHS[code]
            if end > len(packet):
                return 0
            a = int.from_bytes(packet[k:end])
        elif code == 0x40:
            if x + k + 4 > len(packet):
                return 0
            a = int.from_bytes(packet[x + k : x + k + 4])
        elif code in _COMPARE:
            at += then if _COMPARE[code](a, k) else otherwise
        elif code == 0x06:
            return int(k)
        elif code == 0x05:
            at += k
        elif code == 0x80:
            a = length or len(packet)
        elif code == 0x60:
            a = memory[k]
        elif code == 0x02:
            memory[k] = a
        elif code == 0x07:
            x = a
        else:
            a = {0x54: a & k, 0x74: a >> k, 0x04: a + k, 0x14: a - k, 0x1C: a - x}[code] & 0xFFFFFFFF


def packet(
    source: tuple[str, int],
    to: tuple[str, int],
    payload: bytes = b"",
    seq: int = 1,
    flags: int = ACK,
    options: int = 12,
    timestamps: tuple[int, int] | None = None,
) -> bytes:
    """A TCP segment with its IP header, of IPv4 or IPv6; `options` are bytes of TCP's.

    `timestamps` are TSval and TSecr where it has them, in the first 12 bytes of its options.
    """
    (from_host, from_port), (to_host, to_port) = source, to
    words = (20 + options) // 4
    tcp = struct.pack(">HHIIBBHHH", from_port, to_port, seq % (1 << 32), 1, words << 4, flags, 512, 0, 0)
    stamps = b"" if timestamps is None else struct.pack(">III", 0x0101080A, *timestamps)
    tcp += stamps.ljust(options, b"\0")
    if ":" in from_host:
        family, ip = socket.AF_INET6, struct.pack(">IHBB", 6 << 28, len(tcp) + len(payload), 6, 64)
    else:
        size = 20 + len(tcp) + len(payload)
        family, ip = socket.AF_INET, struct.pack(">BBHHHBBH", 0x45, 0, size, 0, 0x4000, 64, 6, 0)
    addresses = socket.inet_pton(family, from_host) + socket.inet_pton(family, to_host)
    return ip + addresses + tcp + payload
